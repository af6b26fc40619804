# What is read of transformers' first file, for the type checker alone: that file imports all
# classes, and their 2,500 files took a quarter of a check. A name that is missing here is an error.
from transformers.configuration_utils import PreTrainedConfig as PreTrainedConfig
from transformers.modeling_utils import PreTrainedModel as PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING as CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING as MODEL_FOR_CAUSAL_LM_MAPPING,
)
from transformers.models.auto.modeling_auto import MODEL_MAPPING as MODEL_MAPPING
from transformers.models.auto.modeling_auto import AutoModelForCausalLM as AutoModelForCausalLM
from transformers.models.gpt2.configuration_gpt2 import GPT2Config as GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel as GPT2LMHeadModel
from transformers.utils import logging as logging
from transformers.utils.quantization_config import BitsAndBytesConfig as BitsAndBytesConfig
from transformers.utils.quantization_config import QuantoConfig as QuantoConfig
from transformers.utils.quantization_config import TorchAoConfig as TorchAoConfig

__version__: str
