"""What `check` and `explain` do with a configuration of MindFormers 2.x."""

import argparse
import sys

from mindswap.document.nodes import Document
from mindswap.errors import GraphError, PolicyError
from mindswap.mindformers_2x.check import check_pynative
from mindswap.mindformers_2x.form import Form
from mindswap.report.answer import answer_text
from mindswap.report.problems import escape, format_counts, format_problems, problems_to_data
from mindswap.report.pynative import effect_to_json, format_effect, format_layers_2x, pynative_notes

__all__ = ["check_2x", "explain_2x"]


def check_2x(args: argparse.Namespace, document: Document, colour: bool) -> int:
    """Print every problem, then what happens in each layer.

    Returns:
        0, or 1 if there is an error.
    """
    checked = check_pynative(document, args.num_layers, silence=args.ignore)
    problems, notes = checked.problems, pynative_notes(checked.effect)
    if args.json:
        data = {**problems_to_data(problems), "num_ignored": len(checked.ignored), "notes": notes}
        print(answer_text("check", {**data, **effect_to_json(checked.effect, problems)}, not checked.errors))
    else:
        lines = [format_problems(problems, colour)] if problems else []
        lines += [escape(f"note: {note}") for note in notes]
        lines.append(f"{format_counts(problems, checked.ignored)}; read as {Form.PYNATIVE.value}")
        if not checked.errors and checked.effect.layers:
            lines += ["", format_layers_2x(checked.effect)]
        print("\n".join(lines))
    return 1 if checked.errors else 0


def explain_2x(args: argparse.Namespace, document: Document) -> int:
    """Print what each layer swaps and recomputes, and what upstream drops; also where there are errors.

    Returns:
        0, or 1 if there is an error.

    Raises:
        PolicyError: the file cannot be read.
    """
    checked = check_pynative(document, args.num_layers)
    if document.root is None:
        raise PolicyError(checked.problems)
    model = checked.effect.model
    if args.paths:
        if model is None:
            raise GraphError("no table has this model in PyNative mode, so the names of its cells are not known")
        rows = [(path, "cell" if path in model.layers[0].cells else "operator") for path in model.layers[0].order]
        rows = [(path.replace(".", "\\."), kind) for path, kind in rows]
        if args.json:
            print(answer_text("explain", {"paths": [{"name": path, "is": kind} for path, kind in rows]}, True))
        else:
            width = max(len(path) for path, _ in rows)
            print("\n".join(f"{path:<{width}}  {kind}" for path, kind in rows))
        return 0
    if args.json:
        data = {**problems_to_data(checked.problems), **effect_to_json(checked.effect, checked.problems)}
        print(answer_text("explain", data, not checked.errors))
    else:
        if checked.problems:
            print(format_problems(checked.problems), end="\n\n", file=sys.stderr if checked.errors else sys.stdout)
        print(format_effect(checked.effect, bool(checked.errors)))
    return 1 if checked.errors else 0
