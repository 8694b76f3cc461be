import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindswap.config.problem import Location
from mindswap.policy.formats.megatron.options import OPTIONS, read_options, read_tokens
from mindswap.policy.formats.megatron.script import ScriptError, find_command, option_line
from tests.strength import examples

# In the form of the launch scripts that come with Megatron-LM: arrays, strings, comments with quotes.
SCRIPT = r"""#!/bin/bash
# Runs the "175B" model: don't change --num-layers 1 here
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
PP=${PP:-4}
CHECKPOINT_PATH=$1 #<Specify path>

MODEL_ARGS=(
    --num-layers 96
    --hidden-size 12288   # wide
)
PARALLEL_ARGS=(
	--tensor-model-parallel-size 8
	--pipeline-model-parallel-size ${PP}
)
RECOMPUTE="--recompute-granularity full \
   --recompute-method block \
   --recompute-num-layers=5"
RECOMPUTE+=" --distribute-saved-activations"
cat <<EOF > notes
it's --num-layers 3
EOF
torchrun --nnodes $NUM_NODES pretrain_gpt.py \
    ${MODEL_ARGS[@]} \
    "${PARALLEL_ARGS[@]}" $RECOMPUTE $EXTRA | tee log && echo done
"""


def options(text):
    return read_tokens(find_command(text).words)


def test_a_launch_script():
    assert options(SCRIPT) == {
        "--num-layers": ["96"],
        "--tensor-model-parallel-size": ["8"],
        "--pipeline-model-parallel-size": ["4"],
        "--recompute-granularity": ["full"],
        "--recompute-method": ["block"],
        "--recompute-num-layers": ["5"],
        "--distribute-saved-activations": [],
    }


def test_what_may_be_more_options_is_named_and_values_are_not():
    assert find_command(SCRIPT).unknown == ("$EXTRA",)
    assert find_command("python x.py --recompute-activations $@").unknown == ("$@",)


def test_a_value_that_is_not_known_has_the_line_that_decides_it():
    """The last one that sets it under a condition, or by a command."""
    text = "A=(--num-layers 8)\nif [ $X ]; then\n  A+=(--recompute-activations)\nfi\nB=$(pwd)\n"
    command = find_command(f'{text}python x.py --num-layers 8 "${{A[@]}}" $B "$@"\n')
    assert command.unknown == ("${A[@]}", "$B", "$@")
    assert command.unknown_lines == (3, 5, 0)


def test_the_line_of_an_option_is_not_that_of_a_comment():
    assert option_line(SCRIPT, "--num-layers") == 10
    assert option_line(SCRIPT, "--recompute-num-layers") == 19
    assert option_line(SCRIPT, "--recompute-modules") == 0


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("--num-layers 32 --recompute-activations", ["32"]),
        ("--num-layers=32", ["32"]),
        ("--num-layers \\\n 32\n", ["32"]),
        ("--num-layers \\\r\n 32\r\n", ["32"]),
        ("--num-layers 32 --tied \\ \n    --num-stages 2\n", ["32"]),  # a blank after the backslash ends the command
        ("ARGS='--num-layers 32'\n", ["32"]),
        ('N=32\nARGS="--num-layers $N"\nCMD="python x.py ${ARGS}"\nsrun sh -c "$CMD"', ["32"]),
        ("export N=32; python x.py --num-layers $N &", ["32"]),
        ("NCCL_DEBUG=INFO python x.py --num-layers 32", ["32"]),
        ("python x.py --num-layers 16 --num-layers 32", ["32"]),
        ("python x.py --num-layers $N", ["$N"]),
        ("N=$(nproc)\npython x.py --num-layers $N", ["$N"]),
        ("N=`nproc`\npython x.py --num-layers $N", ["$N"]),
        ("python x.py --num-layers $2", ["$2"]),
        ("if [ $S = big ]; then\n  N=48\nelse\n  N=32\nfi\npython x.py --num-layers $N", ["$N"]),
        ("N=32\nif [ $S = x ]; then\n  N=32\nfi\npython x.py --num-layers $N", ["32"]),
        ("for i in 1 2; do\n  X=$i\ndone\nN=32\npython x.py --num-layers $N", ["32"]),
        ("python a.py --num-layers 32\npython b.py --num-layers 32", ["32"]),
    ],
)
def test_what_is_followed(text, layers):
    assert options(text)["--num-layers"] == layers


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 0, "no option of Megatron-LM"),
        ("ls -l\n", 0, "no option of Megatron-LM"),
        ("echo\necho 'open", 2, "no closing quotation"),
        ("python a.py --num-layers 3\n\npython a.py --num-layers 4", 3, "a second command with other options"),
    ],
)
def test_what_cannot_be_read(text, line, message):
    with pytest.raises(ScriptError, match=message) as caught:
        find_command(text)
    assert caught.value.line == line


def test_nothing_is_run(tmp_path):
    script = (
        f"touch {tmp_path}/ran\nN=$(touch {tmp_path}/ran; echo 3)\npython x.py --num-layers $N `touch {tmp_path}/ran`"
    )
    assert options(script)["--num-layers"] == ["$N"]
    assert list(tmp_path.iterdir()) == []


def test_a_variable_of_itself_comes_to_an_end():
    text = 'A="$A $A --num-layers 3"\n' * 40 + "python x.py $A"
    assert options(text)["--num-layers"] == ["3"]


def test_a_flag_takes_no_value():
    assert read_tokens(["--recompute-activations", "x", "--offload-modules", "a", "b", "--lr", "1"]) == {
        "--recompute-activations": [],
        "--offload-modules": ["a", "b"],
    }


FRAGMENTS = [
    "'",
    '"',
    "\\",
    "\n",
    "$",
    "${",
    "}",
    "(",
    ")",
    "`",
    "#",
    ";",
    "<<EOF\n",
    "fi\n",
    "if ",
    "--num-layers ",
    "A=(",
    "é",
]


@settings(max_examples=examples(60, 200))
@given(st.lists(st.tuples(st.integers(0, len(SCRIPT)), st.integers(0, 9), st.sampled_from(FRAGMENTS)), max_size=5))
def test_a_damaged_script_is_read_or_refused(edits):
    text = SCRIPT
    for start, length, replacement in edits:
        text = text[:start] + replacement + text[start + length :]
    try:
        read_options(options(text), dict.fromkeys(OPTIONS, Location("x.sh")))
    except ScriptError as error:
        assert str(error)  # noqa: PT017 a script may be read, too
