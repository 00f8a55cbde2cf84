//! The options of `accelerate launch` that a worker finds in a variable each, and their defaults: one row an option. The
//! launcher itself does nothing with their values.

use clap::{Arg, ArgAction};

use super::python_value::PythonValue;
use super::value::{WrongValue, parse_bit, parse_bits, parse_choice, parse_float_value, parse_integer};

/// Which launches have the variables of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    Dynamo,
    Fp8,
    Fsdp,
    MegatronLm,
    Parallelism,
    DeepSpeed,
}

impl Group {
    /// The words in front of each option of the group, where accelerate adds them to a key of the file that has them not.
    pub(super) const fn added_prefix(self) -> Option<&'static str> {
        match self {
            Self::Dynamo => Some("dynamo_"),
            Self::Fp8 => Some("fp8_"),
            Self::Fsdp => Some("fsdp_"),
            Self::MegatronLm | Self::Parallelism | Self::DeepSpeed => None,
        }
    }
}

/// Which values an option takes on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Values {
    Text,
    Int,
    Float,
    /// There or not.
    Flag,
    /// True where the text is not empty: Python's `bool(text)`.
    NotEmpty,
    Choice(&'static [&'static str]),
    /// A truth value, which is printed as 1 or 0.
    Bit,
    /// Three of them.
    ThreeBits,
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct VariableOption {
    /// The long name, with underscores.
    pub(super) name: &'static str,
    pub(super) group: Group,
    values: Values,
    default: Option<Preset>,
    variable: Variable,
    letters: Letters,
    /// The variable is there only if this option is above 1; then also without a value.
    needs: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Preset {
    Text(&'static str),
    Int(i128),
    /// 1.0, the only number with a point.
    One,
    Bool(bool),
}

/// How accelerate prints the letters of the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Letters {
    Kept,
    Lower,
    Upper,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variable {
    /// The name of the option in capitals behind these letters.
    Prefixed(&'static str),
    Named(&'static str),
    /// accelerate hands the value to nothing that a local launch starts.
    None,
}

impl VariableOption {
    const fn default(self, default: Preset) -> Self {
        Self { default: Some(default), ..self }
    }

    const fn lower(self) -> Self {
        Self { letters: Letters::Lower, ..self }
    }

    const fn upper(self) -> Self {
        Self { letters: Letters::Upper, ..self }
    }

    const fn named(self, variable: &'static str) -> Self {
        Self { variable: Variable::Named(variable), ..self }
    }

    const fn without_variable(self) -> Self {
        Self { variable: Variable::None, ..self }
    }

    const fn needs(self, name: &'static str) -> Self {
        Self { needs: Some(name), ..self }
    }

    /// The option for clap.
    pub(super) fn arg(&self) -> Arg {
        let arg = Arg::new(self.name).long(self.name.replace('_', "-")).hide(true).action(ArgAction::Set);
        match self.values {
            Values::Flag => arg.action(ArgAction::SetTrue),
            Values::Text => arg.value_parser(|text: &str| Ok::<_, WrongValue>(PythonValue::text(text))),
            Values::NotEmpty => {
                arg.value_parser(|text: &str| Ok::<_, WrongValue>(PythonValue::Bool(!text.is_empty())))
            }
            Values::Int => arg.value_parser(parse_integer),
            Values::Float => arg.value_parser(parse_float_value),
            Values::Bit => arg.value_parser(parse_bit),
            Values::ThreeBits => arg.value_parser(parse_bits),
            Values::Choice(choices) => {
                arg.value_parser(move |text: &str| parse_choice(text, choices).map(PythonValue::text))
            }
        }
    }

    /// What a value of the file should be, where it is none of the option's.
    pub(super) fn expected_instead_of(&self, value: &PythonValue) -> Option<String> {
        let text = value.to_string();
        let result = match (self.values, value) {
            (_, PythonValue::None) | (Values::Text | Values::NotEmpty, _) => return None,
            // DeepSpeed's word for a value that the program fills in.
            (_, PythonValue::Text(word)) if self.group == Group::DeepSpeed && word == "auto" => return None,
            (Values::Int, _) => parse_integer(&text).err(),
            (Values::Float, _) => parse_float_value(&text).err(),
            (Values::Flag | Values::Bit, _) => parse_bit(&text).err(),
            (Values::ThreeBits, PythonValue::List(bits)) => {
                parse_bits(&bits.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")).err()
            }
            (Values::ThreeBits, _) => parse_bits(&text).err(),
            // A `no` without quotes is false.
            (Values::Choice(choices), PythonValue::Bool(false)) => parse_choice("no", choices).err(),
            (Values::Choice(choices), _) => {
                let choice = choices.iter().find(|choice| choice.eq_ignore_ascii_case(&text));
                parse_choice(choice.map_or(text.as_str(), |choice| *choice), choices).err()
            }
        };
        result.map(|WrongValue(expected)| expected)
    }

    pub(super) const fn is_flag(&self) -> bool {
        matches!(self.values, Values::Flag)
    }

    /// The value of an option that was given nowhere.
    pub(super) fn default_value(&self) -> PythonValue {
        match (self.default, self.values) {
            (Some(Preset::Text(text)), _) => PythonValue::text(text),
            (Some(Preset::Int(number)), _) => PythonValue::Int(number),
            (Some(Preset::One), _) => PythonValue::Float(1.0),
            (Some(Preset::Bool(is_true)), _) => PythonValue::Bool(is_true),
            (None, Values::Flag) => PythonValue::Bool(false),
            (None, Values::ThreeBits) => PythonValue::List(vec![PythonValue::Bool(false); 3]),
            (None, _) => PythonValue::None,
        }
    }

    /// The variables for this value; `is_above_one` answers for another option.
    pub(super) fn variables(
        &self,
        value: &PythonValue,
        is_above_one: impl Fn(&str) -> bool,
    ) -> Vec<(String, String)> {
        let is_wanted = match self.needs {
            Some(other) => is_above_one(other),
            None => *value != PythonValue::None || self.default.is_some(),
        };
        let printed = |value: &PythonValue| {
            let text = value.to_string();
            match self.letters {
                Letters::Kept => text,
                Letters::Lower => text.to_lowercase(),
                Letters::Upper => text.to_uppercase(),
            }
        };
        let name = match self.variable {
            Variable::Named(name) => name.to_owned(),
            Variable::Prefixed(prefix) => format!("{prefix}{}", self.name.to_uppercase()),
            Variable::None => return Vec::new(),
        };
        match (self.values, value) {
            _ if !is_wanted => Vec::new(),
            (Values::ThreeBits, PythonValue::List(bits)) => {
                let names = ["FPROP", "DGRAD", "WGRAD"].map(|name| format!("ACCELERATE_FP8_OVERRIDE_{name}"));
                names.into_iter().zip(bits.iter().map(printed)).collect()
            }
            _ => vec![(name, printed(value))],
        }
    }
}

/// The only row that no option of the command line has.
const KEY_ALONE: &str = "fsdp_ignored_modules";

/// The rows that the command line has.
pub(super) fn typed_rows() -> impl Iterator<Item = &'static VariableOption> {
    ROWS.iter().filter(|row| row.name != KEY_ALONE)
}

/// The row of this option.
pub(super) fn find_row(name: &str) -> Option<&'static VariableOption> {
    ROWS.iter().find(|row| row.name == name)
}

const fn row(group: Group, name: &'static str, values: Values) -> VariableOption {
    let variable = Variable::Prefixed(match group {
        Group::Dynamo | Group::Fp8 | Group::DeepSpeed => "ACCELERATE_",
        Group::Fsdp | Group::MegatronLm | Group::Parallelism => "",
    });
    VariableOption { name, group, values, default: None, variable, letters: Letters::Kept, needs: None }
}

const fn dynamo(name: &'static str, values: Values) -> VariableOption {
    row(Group::Dynamo, name, values)
}

const fn fp8(name: &'static str, values: Values) -> VariableOption {
    row(Group::Fp8, name, values)
}

const fn fsdp(name: &'static str, values: Values) -> VariableOption {
    row(Group::Fsdp, name, values)
}

const fn megatron(name: &'static str, values: Values) -> VariableOption {
    row(Group::MegatronLm, name, values)
}

const fn parallelism(name: &'static str, values: Values) -> VariableOption {
    row(Group::Parallelism, name, values)
}

const fn deepspeed(name: &'static str, values: Values) -> VariableOption {
    row(Group::DeepSpeed, name, values)
}

use Preset::{Bool, One};
use Values::{Bit, Choice, Flag, Float, Int, NotEmpty, Text, ThreeBits};

const DYNAMO_BACKENDS: &[&str] = &[
    "no",
    "eager",
    "aot_eager",
    "inductor",
    "aot_ts_nvfuser",
    "nvprims_nvfuser",
    "cudagraphs",
    "ofi",
    "fx2trt",
    "onnxrt",
    "tensorrt",
    "aot_torchxla_trace_once",
    "torchxla_trace_once",
    "tvm",
    "hpu_backend",
    "neuron",
];

/// The options in the order of accelerate's help, by group.
pub(super) static ROWS: &[VariableOption] = &[
    dynamo("dynamo_backend", Choice(DYNAMO_BACKENDS)).default(Preset::Text("no")).upper(),
    dynamo("dynamo_mode", Choice(&["default", "reduce-overhead", "max-autotune"]))
        .default(Preset::Text("default")),
    dynamo("dynamo_use_fullgraph", Flag),
    dynamo("dynamo_use_dynamic", Flag),
    dynamo("dynamo_use_regional_compilation", Flag),
    deepspeed("deepspeed_config_file", Text).named("ACCELERATE_DEEPSPEED_CONFIG_FILE"),
    deepspeed("zero_stage", Int).named("ACCELERATE_DEEPSPEED_ZERO_STAGE"),
    deepspeed("offload_optimizer_device", Text)
        .named("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE")
        .lower(),
    deepspeed("offload_param_device", Text).named("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE").lower(),
    deepspeed("offload_optimizer_nvme_path", Text).without_variable(),
    deepspeed("offload_param_nvme_path", Text).without_variable(),
    deepspeed("gradient_accumulation_steps", Int),
    deepspeed("gradient_clipping", Float).lower(),
    deepspeed("zero3_init_flag", Text).named("ACCELERATE_DEEPSPEED_ZERO3_INIT").lower(),
    deepspeed("zero3_save_16bit_model", Text).named("ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL").lower(),
    deepspeed("deepspeed_hostfile", Text).without_variable(),
    deepspeed("deepspeed_exclusion_filter", Text).without_variable(),
    deepspeed("deepspeed_inclusion_filter", Text).without_variable(),
    deepspeed("deepspeed_multinode_launcher", Text).without_variable(),
    deepspeed("deepspeed_moe_layer_cls_names", Text),
    fsdp("fsdp_version", Choice(&["1", "2"])).default(Preset::Text("1")),
    fsdp("fsdp_offload_params", Text).default(Preset::Text("false")).lower(),
    fsdp("fsdp_min_num_params", Int).default(Preset::Int(100_000_000)),
    fsdp("fsdp_sharding_strategy", Text).default(Preset::Text("FULL_SHARD")),
    fsdp("fsdp_reshard_after_forward", Text).default(Preset::Text("true")).lower(),
    fsdp("fsdp_auto_wrap_policy", Text),
    fsdp("fsdp_transformer_layer_cls_to_wrap", Text).named("FSDP_TRANSFORMER_CLS_TO_WRAP"),
    fsdp("fsdp_backward_prefetch", Text),
    fsdp("fsdp_state_dict_type", Text),
    fsdp("fsdp_forward_prefetch", Text).default(Preset::Text("false")).lower(),
    fsdp("fsdp_use_orig_params", Text).default(Preset::Text("true")).lower(),
    fsdp("fsdp_cpu_ram_efficient_loading", Text).default(Preset::Text("true")).lower(),
    fsdp("fsdp_sync_module_states", Text).default(Preset::Text("true")).lower(),
    fsdp("fsdp_activation_checkpointing", Text).default(Preset::Text("false")).lower(),
    fsdp("fsdp_activation_checkpointing_offload", Text).default(Preset::Text("false")).lower(),
    fsdp("fsdp_ignored_modules", Text),
    megatron("megatron_lm_tp_degree", Int).default(Preset::Int(1)),
    megatron("megatron_lm_use_custom_fsdp", NotEmpty).default(Bool(false)),
    megatron("megatron_lm_no_load_optim", NotEmpty).default(Bool(false)),
    megatron("megatron_lm_eod_mask_loss", NotEmpty).default(Bool(false)),
    megatron("megatron_lm_overlap_cpu_optimizer_d2h_h2d", NotEmpty).default(Bool(false)),
    megatron("megatron_lm_no_save_optim", NotEmpty).default(Bool(false)),
    megatron("megatron_lm_optimizer_cpu_offload", NotEmpty).default(Bool(false)),
    megatron("megatron_lm_use_precision_aware_optimizer", NotEmpty).default(Bool(false)),
    megatron("megatron_lm_decoder_last_pipeline_num_layers", Int),
    megatron("megatron_lm_pp_degree", Int).default(Preset::Int(1)),
    megatron("megatron_lm_num_micro_batches", Int),
    megatron("megatron_lm_sequence_parallelism", Text),
    megatron("megatron_lm_recompute_activations", Text),
    megatron("megatron_lm_use_distributed_optimizer", Text),
    megatron("megatron_lm_gradient_clipping", Float).default(One),
    megatron("megatron_lm_recompute_granularity", Text),
    megatron("megatron_lm_recompute_method", Text),
    megatron("megatron_lm_recompute_num_layers", Int),
    megatron("megatron_lm_attention_backend", Text),
    megatron("megatron_lm_expert_model_parallel_size", Int),
    megatron("megatron_lm_context_parallel_size", Int),
    megatron("megatron_lm_attention_dropout", Float),
    megatron("megatron_lm_hidden_dropout", Float),
    megatron("megatron_lm_attention_softmax_in_fp32", Text),
    megatron("megatron_lm_expert_tensor_parallel_size", Int),
    megatron("megatron_lm_calculate_per_token_loss", Text),
    megatron("megatron_lm_use_rotary_position_embeddings", Text),
    fp8("fp8_backend", Choice(&["ao", "te", "msamp"])),
    fp8("fp8_use_autocast_during_eval", Flag),
    fp8("fp8_margin", Int).default(Preset::Int(0)),
    fp8("fp8_interval", Int).default(Preset::Int(1)),
    fp8("fp8_format", Choice(&["HYBRID", "E4M3", "E5M2"])).default(Preset::Text("HYBRID")),
    fp8("fp8_amax_history_len", Int).default(Preset::Int(1024)),
    fp8("fp8_amax_compute_algo", Choice(&["max", "most_recent"])).default(Preset::Text("most_recent")),
    fp8("fp8_override_linear_precision", ThreeBits),
    fp8("fp8_opt_level", Choice(&["O1", "O2"])).default(Preset::Text("O2")),
    fp8("fp8_enable_fsdp_float8_all_gather", Bit).default(Preset::Int(1)),
    fp8("fp8_pad_inner_dim", Bit).default(Preset::Int(1)),
    parallelism("parallelism_config_dp_replicate_size", Int).default(Preset::Int(1)),
    parallelism("parallelism_config_dp_shard_size", Int).default(Preset::Int(1)),
    parallelism("parallelism_config_tp_size", Int).default(Preset::Int(1)),
    parallelism("parallelism_config_cp_size", Int).default(Preset::Int(1)),
    parallelism("parallelism_config_cp_backend", Choice(&["torch"])).default(Preset::Text("torch")),
    parallelism("parallelism_config_cp_comm_strategy", Text)
        .default(Preset::Text("allgather"))
        .needs("parallelism_config_cp_size"),
    parallelism("parallelism_config_sp_size", Int).default(Preset::Int(1)),
    parallelism("parallelism_config_sp_backend", Choice(&["deepspeed"])).default(Preset::Text("deepspeed")),
    parallelism("parallelism_config_sp_seq_length", Text).needs("parallelism_config_sp_size"),
    parallelism("parallelism_config_sp_seq_length_is_variable", NotEmpty)
        .default(Bool(true))
        .needs("parallelism_config_sp_size"),
    parallelism("parallelism_config_sp_attn_implementation", Text)
        .default(Preset::Text("sdpa"))
        .needs("parallelism_config_sp_size"),
];
