//! The keys of the file: the type of each, and the setting that it fills.

use super::{ConfigFile, KeyPlace};
use crate::cli::error::{CliError, SettingError};
use crate::cli::other_launcher::accelerate::args::MPIRUN_HINT;
use crate::cli::other_launcher::accelerate::document::{Content, Node};
use crate::cli::other_launcher::accelerate::python_value::PythonValue;
use crate::cli::other_launcher::accelerate::settings::TrainingKind;
use crate::cli::other_launcher::accelerate::value::{COUNT, PORT, PRECISIONS, RANK, count_of, parse_bit};
use crate::cli::other_launcher::accelerate::variable_option::{Group, ROWS, find_row};
use crate::cli::suggest::nearest_of;

/// The keys for Google's TPU pods, and words that fill them without an effect.
const TPU_KEYS: [&str; 9] = [
    "downcast_bf16",
    "tpu_name",
    "tpu_zone",
    "tpu_use_cluster",
    "tpu_use_sudo",
    "tpu_vm",
    "tpu_env",
    "command_file",
    "commands",
];

const PLAIN_KEYS: [&str; 18] = [
    "compute_environment",
    "distributed_type",
    "mixed_precision",
    "use_cpu",
    "debug",
    "num_processes",
    "machine_rank",
    "num_machines",
    "gpu_ids",
    "main_process_ip",
    "main_process_port",
    "rdzv_backend",
    "same_network",
    "main_training_function",
    "enable_cpu_affinity",
    "fp16",
    "dynamo_backend",
    "mpirun_config",
];

const NESTED_KEYS: [(&str, Group); 6] = [
    ("deepspeed_config", Group::DeepSpeed),
    ("fsdp_config", Group::Fsdp),
    ("megatron_lm_config", Group::MegatronLm),
    ("parallelism_config", Group::Parallelism),
    ("fp8_config", Group::Fp8),
    ("dynamo_config", Group::Dynamo),
];

/// Reads the keys in the order of the file.
///
/// # Errors
/// A key is unknown, missing, of another type, or for something that rankrun does not launch.
pub(super) fn read_entries(path: &str, entries: &[(String, Node)]) -> Result<ConfigFile, CliError> {
    let mut file = ConfigFile { path: path.to_owned(), ..ConfigFile::default() };
    let mut is_half_precision = false;
    for (key, node) in entries {
        let field = Field { place: KeyPlace { path, line: node.line, key }, node };
        match key.as_str() {
            "fp16" => is_half_precision = field.flag()?,
            key if TPU_KEYS.contains(&key) => field.must_be_off()?,
            key if PLAIN_KEYS.contains(&key) => {
                file.origins.insert(key.to_owned(), field.place.origin());
                file.read_plain_key(key, &field)?;
            }
            key => match NESTED_KEYS.iter().find(|(name, _)| *name == key) {
                Some((_, group)) => file.read_group(*group, &field)?,
                None => return Err(field.unknown()),
            },
        }
    }
    if is_half_precision && !entries.iter().any(|(key, _)| key == "mixed_precision") {
        file.args.mixed_precision = Some("fp16".to_owned());
    }
    if file.kind.is_none() {
        return Err(CliError::refused(
            format!("`{path}` has no `distributed_type`"),
            "add `distributed_type: MULTI_GPU`, or `NO` for one process",
        ));
    }
    let is_single =
        entries.iter().all(|(key, _)| key != "num_processes") && file.kind == Some(TrainingKind::Plain);
    if is_single {
        file.args.num_processes = Some(1);
    }
    Ok(file)
}

impl ConfigFile {
    fn read_plain_key(&mut self, key: &str, field: &Field<'_>) -> Result<(), CliError> {
        let args = &mut self.args;
        match key {
            "compute_environment" if field.text()?.is_none_or(|value| value == "LOCAL_MACHINE") => {}
            "compute_environment" => {
                return Err(field.place.refused(
                    "is Amazon SageMaker, where rankrun starts nothing",
                    "write `LOCAL_MACHINE`, or run `accelerate` itself",
                ));
            }
            "distributed_type" => self.kind = Some(field.kind()?),
            "mixed_precision" => args.mixed_precision = field.precision()?,
            "use_cpu" => self.use_cpu = field.flag()?,
            "debug" => args.debug = field.flag()?,
            // accelerate writes -1 where the number is to be typed.
            "num_processes" if field.int() == Some(-1) => {}
            "num_processes" => args.num_processes = field.count()?,
            "machine_rank" => args.machine_rank = field.number(RANK)?,
            "num_machines" => args.num_machines = field.count()?,
            "gpu_ids" => args.gpu_ids = field.text()?,
            "main_process_ip" => args.main_process_ip = field.text()?,
            "main_process_port" => args.main_process_port = field.number(PORT)?,
            "rdzv_backend" => args.rdzv_backend = field.text()?,
            "same_network" => args.same_network = field.flag()?,
            "enable_cpu_affinity" => args.enable_cpu_affinity = field.flag()?,
            "dynamo_backend" => {
                if let Some(backend) = field.text()? {
                    self.variables.insert("dynamo_backend", PythonValue::Text(backend));
                }
            }
            "mpirun_config" => field.refuse_host_file()?,
            // `main_training_function` is for TPUs and notebooks.
            _ => {}
        }
        Ok(())
    }

    fn read_group(&mut self, group: Group, field: &Field<'_>) -> Result<(), CliError> {
        let entries = match &field.node.content {
            Content::Map(entries) => entries.as_slice(),
            Content::Scalar(_, PythonValue::None) => &[],
            _ => return Err(field.wrong("a group of keys, one on each line below it")),
        };
        self.has_parallelism |= group == Group::Parallelism && !entries.is_empty();
        for (key, node) in entries {
            let name = format!("{}.{key}", field.place.key);
            let inner = Field { place: KeyPlace { key: &name, line: node.line, ..field.place }, node };
            let value = inner.value()?;
            if group == Group::DeepSpeed {
                self.deepspeed_keys.push(key.clone());
            }
            self.keep(group, key, (&inner, value))?;
        }
        Ok(())
    }

    fn keep(
        &mut self,
        group: Group,
        key: &str,
        (field, value): (&Field<'_>, PythonValue),
    ) -> Result<(), CliError> {
        let option = match group.added_prefix() {
            Some(prefix) if !key.starts_with(prefix.trim_end_matches('_')) => format!("{prefix}{key}"),
            _ => key.to_owned(),
        };
        match find_row(&option) {
            Some(row) => {
                if let Some(expected) = row.expected_instead_of(&value) {
                    return Err(field.wrong(&expected));
                }
                self.variables.insert(row.name, value);
            }
            None if group == Group::Fp8 => {
                let variable = format!("ACCELERATE_{}", option.to_uppercase());
                self.further_fp8.push((variable, value.to_string()));
            }
            None => {
                let KeyPlace { path, line, key } = field.place;
                let of_group = || ROWS.iter().filter(|row| row.group == group).map(|row| row.name);
                let meant = nearest_of(&option, of_group()).map(|name| format!("; did you mean `{name}`?"));
                self.remarks.push(format!(
                    "`{path}`, line {line}: `{key}` has no effect: accelerate has no such setting{}",
                    meant.unwrap_or_default()
                ));
            }
        }
        Ok(())
    }
}

/// A key with its value.
#[derive(Debug, Clone, Copy)]
struct Field<'a> {
    place: KeyPlace<'a>,
    node: &'a Node,
}

impl Field<'_> {
    fn unknown(&self) -> CliError {
        let nested = NESTED_KEYS.iter().map(|(name, _)| *name);
        let known = PLAIN_KEYS.iter().chain(&TPU_KEYS).copied().chain(nested);
        let hint = match nearest_of(self.place.key, known) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => "remove it, or move it into the group that it belongs to, as `fsdp_config`".to_owned(),
        };
        SettingError::of_origin(self.place.origin(), "is not a key of accelerate", hint).into()
    }

    /// The error of a value that is not as expected.
    fn wrong(&self, expected: &str) -> CliError {
        let written = match &self.node.content {
            Content::Scalar(word, _) => word.as_str(),
            Content::List(_) => "a list",
            Content::Map(_) => "a group of keys",
        };
        self.place.wrong_value(written, expected)
    }

    fn scalar(&self) -> Option<(&str, &PythonValue)> {
        match &self.node.content {
            Content::Scalar(word, value) => Some((word, value)),
            Content::List(_) | Content::Map(_) => None,
        }
    }

    fn is_null(&self) -> bool {
        self.scalar().is_some_and(|(_, value)| *value == PythonValue::None)
    }

    fn int(&self) -> Option<i128> {
        self.scalar().and_then(|(_, value)| value.as_int())
    }

    fn text(&self) -> Result<Option<String>, CliError> {
        let (word, value) = self.scalar().ok_or_else(|| self.wrong("a word"))?;
        Ok((*value != PythonValue::None).then(|| word.to_owned()))
    }

    fn flag(&self) -> Result<bool, CliError> {
        match self.scalar() {
            Some((_, PythonValue::None)) => Ok(false),
            Some((_, PythonValue::Bool(value))) => Ok(*value),
            Some((word, _)) if parse_bit(word).is_ok() => Ok(parse_bit(word) == Ok(PythonValue::Int(1))),
            _ => Err(self.wrong("true or false")),
        }
    }

    fn count(&self) -> Result<Option<u32>, CliError> {
        if self.is_null() {
            return Ok(None);
        }
        count_of(self.int()).map(Some).ok_or_else(|| self.wrong(COUNT))
    }

    fn number<T: TryFrom<i128>>(&self, expected: &str) -> Result<Option<T>, CliError> {
        if self.is_null() {
            return Ok(None);
        }
        let number = self.int().and_then(|number| T::try_from(number).ok());
        number.map(Some).ok_or_else(|| self.wrong(expected))
    }

    fn precision(&self) -> Result<Option<String>, CliError> {
        let text = self.text()?.map(|text| text.to_lowercase());
        match text.filter(|text| !PRECISIONS.contains(&text.as_str())) {
            Some(_) => Err(self.wrong("no, fp16, bf16 or fp8")),
            None => Ok(self.text()?.map(|text| text.to_lowercase())),
        }
    }

    fn kind(&self) -> Result<TrainingKind, CliError> {
        let word = self.scalar().map_or("", |(word, _)| word);
        Ok(match word {
            "NO" => TrainingKind::Plain,
            "MULTI_CPU" => TrainingKind::MultiCpu,
            "MULTI_GPU" | "MULTI_NPU" | "MULTI_MLU" | "MULTI_SDAA" | "MULTI_MUSA" | "MULTI_XPU"
            | "MULTI_HPU" | "MULTI_NEURON" => TrainingKind::MultiDevice,
            "DEEPSPEED" => TrainingKind::DeepSpeed,
            "FSDP" => TrainingKind::Fsdp,
            "MEGATRON_LM" => TrainingKind::MegatronLm,
            "XLA" | "TPU" => {
                let hint = "take another `distributed_type`, or run `accelerate` itself";
                return Err(self.place.refused("is for TPUs, which rankrun does not launch on", hint));
            }
            _ => {
                return Err(
                    self.wrong("NO, MULTI_CPU, MULTI_GPU or another MULTI_*, FSDP, DEEPSPEED or MEGATRON_LM")
                );
            }
        })
    }

    /// A value of a group: any scalar, or a list of scalars.
    fn value(&self) -> Result<PythonValue, CliError> {
        match &self.node.content {
            Content::Scalar(_, value) => Ok(value.clone()),
            Content::List(items) => {
                let values = items.iter().map(|item| match &item.content {
                    Content::Scalar(_, value) => Ok(value.clone()),
                    _ => Err(self.wrong("a list of words")),
                });
                values.collect::<Result<_, _>>().map(PythonValue::List)
            }
            Content::Map(_) => Err(self.wrong("a word or a list of words")),
        }
    }

    fn must_be_off(&self) -> Result<(), CliError> {
        let is_off = match &self.node.content {
            Content::Scalar(word, value) => !value.is_true() || parse_bit(word) == Ok(PythonValue::Int(0)),
            Content::List(items) => items.is_empty(),
            Content::Map(entries) => entries.is_empty(),
        };
        let hint = "remove the key, or run `accelerate` itself";
        if is_off {
            Ok(())
        } else {
            Err(self.place.refused("is for TPUs, which rankrun does not launch on", hint))
        }
    }

    fn refuse_host_file(&self) -> Result<(), CliError> {
        let Content::Map(entries) = &self.node.content else { return Ok(()) };
        let has_file = |(key, node): &(String, Node)| match &node.content {
            Content::Scalar(_, value) => key == "mpirun_hostfile" && value.is_true(),
            _ => false,
        };
        match entries.iter().find(|entry| has_file(entry)) {
            Some(_) => Err(self
                .place
                .refused("has a host file for mpirun, which rankrun does not start", MPIRUN_HINT)),
            None => Ok(()),
        }
    }
}
