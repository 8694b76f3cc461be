"""Rule for classes that older releases of MindFormers had and 1.9 does not.

From the registrations (`MindFormerRegister`) of branches r1.3.0, r1.5.0, r1.7.0 and r1.8.0, without those of 1.9.0.
"""

from collections.abc import Iterator

from mindswap.config.findings import Finding, rule
from mindswap.config.problem import Level
from mindswap.rules.context import Context
from mindswap.rules.refusals import Refusal, find_refusals
from mindswap.rules.values import MODEL, Values

# Variants of Adam with weight decay, which AdamW replaces.
OPTIMIZERS = (
    "FP32StateAdamWeightDecay", "FusedAdamWeightDecay", "AdamWeightDecayX", "fp32_adamw", "fused_adamw", "adamw",
)  # fmt: skip
TRAINERS = (
    "ContrastiveLanguageImagePretrainTrainer", "ImageClassificationTrainer", "ImageToTextGenerationTrainer",
    "ImageToTextRetrievalTrainer", "MaskedImageModelingTrainer", "MaskedLanguageModelingTrainer",
    "QuestionAnsweringTrainer", "TextClassificationTrainer", "TokenClassificationTrainer", "TranslationTrainer",
    "ZeroShotImageClassificationTrainer", "contrastive_language_image_pretrain", "fill_mask", "image_classification",
    "image_to_text_generation", "image_to_text_retrieval", "masked_image_modeling", "question_answering",
    "text_classification", "token_classification", "translation", "zero_shot_image_classification",
)  # fmt: skip
NETWORKS = (
    "BertForMultipleChoice", "BertForPreTraining", "BertForQuestionAnswering", "BertForTokenClassification",
    "Blip2Classifier", "Blip2ImageToTextGeneration", "Blip2ItmEvaluator", "Blip2Llm", "Blip2Qformer",
    "BloomLMHeadModel", "BloomRewardModel", "CLIPModel", "CogVLM2ForCausalLM", "CogVLM2ImageForCausalLM",
    "CogVLM2VideoLM", "EVAModel", "GLMChatModel", "GLMForPreTraining", "GPT2ForSequenceClassification",
    "GPT2LMHeadModel", "LlamaForBlip2", "LlamaForCausalLMForCogVLM2Image", "MT5ForConditionalGeneration",
    "MllamaForCausalLM", "MllamaForConditionalGeneration", "PanguAlphaHeadModel",
    "PanguAlphaPromptTextClassificationModel", "ParallelLlamaForCausalLM", "SamModel", "SwinForImageClassification",
    "T5ForConditionalGeneration", "ViTForImageClassification", "ViTForMaskedImageModeling", "ViTMAEForPreTraining",
    "WhisperForConditionalGeneration",
)  # fmt: skip
CONFIGS = (
    "BertConfig", "Blip2Config", "BloomConfig", "CLIPConfig", "CogVLM2Config", "EVA02Config", "GLMConfig", "GPT2Config",
    "MllamaConfig", "PanguAlphaConfig", "SamConfig", "SwinConfig", "T5Config", "ViTConfig", "ViTMAEConfig",
    "WhisperConfig",
)  # fmt: skip


def _removed(name: str, section: str, classes: tuple[str, ...], fix: str) -> Refusal:
    """Return the refusal of removed classes, but for a section that registers its class from the user's code."""
    path = f"{section}.type"

    def is_removed(v: Values) -> bool:
        return v(path) in classes and not v.is_written(f"{section}.auto_register")

    return Refusal(name, path, is_removed, "MindFormers 1.9 no longer has it", fix=fix)


REFUSALS = (
    _removed("removed-optimizer", "optimizer", OPTIMIZERS, "{key}: AdamW, with betas: [beta1, beta2]"),
    _removed("removed-trainer", "trainer", TRAINERS, "train with the release that the file is of"),
    _removed("removed-network", "model.arch", NETWORKS, "train with the release that the file is of"),
    _removed("removed-config", MODEL.rstrip("."), CONFIGS, "train with the release that the file is of"),
)


@rule(Level.ERROR)
def class_removed(context: Context) -> Iterator[Finding]:
    """A class that older releases of MindFormers had and 1.9 does not: an optimizer, a network, a trainer.

    A section with `auto_register` brings its class along.

    PASS: optimizer: {type: AdamW, betas: [0.9, 0.95]}
    FAIL: optimizer: {type: FP32StateAdamWeightDecay, beta1: 0.9, beta2: 0.95}
    """
    yield from find_refusals(context, REFUSALS)
