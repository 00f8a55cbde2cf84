//! What an option is beside what clap knows of it: the type of its value, its variable, its spellings.

use std::any::TypeId;
use std::ffi::{OsStr, OsString};
use std::marker::PhantomData;
use std::sync::LazyLock;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser, ValueParserFactory};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Args, Command};
use rankrun_contract::rank::LocalRank;

use super::completion::{Shell, TORCHRUN_SHELLS, torchrun_shell};
use super::error::Expected;
use super::python_text::{parse_float, parse_int};
use super::rankrun::RankrunArgs;
use super::torchrun::TorchrunArgs;
use rankrun_core::device::affinity::NumaBinding;
use rankrun_core::device::order::DeviceOrder;
use rankrun_core::device::{DeviceType, Visibility};
use rankrun_core::spec::{CliFlavor, StdinPolicy};

/// Which values an option takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// None: it is there or not.
    Flag,
    /// Any text.
    Text,
    /// What Python's `int()` takes.
    Int,
    /// What Python's `float()` takes.
    Float,
    /// One of these words.
    Choice(Vec<String>),
    /// A local rank, `all` or `none`.
    RankOrWord,
}

/// A type of values.
pub(super) trait FromText: Clone + Send + Sync + 'static {
    /// The value that a text says, if it is of this type.
    fn from_text(text: &OsStr) -> Option<Self>;

    /// What the error of another text says, where the type of the option alone says too little.
    fn expected() -> Option<Expected> {
        None
    }

    /// The words for all values, if there are only a few.
    fn choices() -> Vec<&'static str> {
        Vec::new()
    }
}

/// A flag that was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flag;

/// A start method of Python's multiprocessing. None has an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StartMethod;

const START_METHODS: [&str; 3] = ["spawn", "fork", "forkserver"];

impl FromText for Flag {
    fn from_text(_text: &OsStr) -> Option<Self> {
        Some(Self)
    }
}

impl FromText for String {
    fn from_text(text: &OsStr) -> Option<Self> {
        text.to_str().map(str::to_owned)
    }
}

impl FromText for OsString {
    fn from_text(text: &OsStr) -> Option<Self> {
        Some(text.to_owned())
    }
}

impl FromText for i128 {
    fn from_text(text: &OsStr) -> Option<Self> {
        text.to_str().and_then(parse_int)
    }
}

impl FromText for f64 {
    fn from_text(text: &OsStr) -> Option<Self> {
        text.to_str().and_then(parse_float)
    }
}

impl FromText for StdinPolicy {
    fn from_text(text: &OsStr) -> Option<Self> {
        match text.to_str()? {
            "all" => Some(Self::All),
            "none" => Some(Self::None),
            rank => rank.parse::<LocalRank>().ok().map(Self::Only),
        }
    }
}

impl FromText for StartMethod {
    fn from_text(text: &OsStr) -> Option<Self> {
        START_METHODS.contains(&text.to_str()?).then_some(Self)
    }

    fn choices() -> Vec<&'static str> {
        START_METHODS.to_vec()
    }
}

impl FromText for Shell {
    fn from_text(text: &OsStr) -> Option<Self> {
        text.to_str().and_then(torchrun_shell)
    }

    fn choices() -> Vec<&'static str> {
        TORCHRUN_SHELLS.to_vec()
    }
}

impl FromText for NumaBinding {
    fn from_text(text: &OsStr) -> Option<Self> {
        text.to_str()?.parse().ok()
    }

    fn choices() -> Vec<&'static str> {
        Self::ALL.map(Self::as_str).to_vec()
    }
}

impl FromText for DeviceType {
    fn from_text(text: &OsStr) -> Option<Self> {
        text.to_str()?.parse().ok()
    }

    fn choices() -> Vec<&'static str> {
        Self::ALL.map(Self::as_str).to_vec()
    }
}

impl FromText for DeviceOrder {
    fn from_text(text: &OsStr) -> Option<Self> {
        text.to_str()?.parse().ok()
    }

    fn choices() -> Vec<&'static str> {
        Self::ALL.map(Self::as_str).to_vec()
    }
}

impl FromText for Visibility {
    fn from_text(text: &OsStr) -> Option<Self> {
        match text.to_str()? {
            "all" => Some(Self::Whole),
            "own" => Some(Self::Own),
            _ => None,
        }
    }

    fn choices() -> Vec<&'static str> {
        vec!["all", "own"]
    }
}

/// The value of an option, and the option that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OptionValue<T> {
    pub(super) option: &'static Arg,
    pub(super) value: T,
}

/// Reads the value of an option by the rules of its type.
#[derive(Debug, Clone)]
pub(super) struct OptionValueParser<T>(PhantomData<fn() -> T>);

impl<T: FromText> ValueParserFactory for OptionValue<T> {
    type Parser = OptionValueParser<T>;

    fn value_parser() -> Self::Parser {
        OptionValueParser(PhantomData)
    }
}

impl<T: FromText> TypedValueParser for OptionValueParser<T> {
    type Value = OptionValue<T>;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Self::Value, clap::Error> {
        let name = arg.and_then(Arg::get_long).unwrap_or_default();
        if let Some((option, value)) = find_option(name).zip(T::from_text(value)) {
            return Ok(OptionValue { option, value });
        }
        if let Some(expected) = T::expected() {
            return StringValueParser::new().try_map(move |_| Err(expected)).parse_ref(command, arg, value);
        }
        Err({
            let mut error = clap::Error::new(ErrorKind::ValueValidation);
            let text = |text: &str| ContextValue::String(text.to_owned());
            error.insert(ContextKind::InvalidArg, text(name));
            error.insert(ContextKind::InvalidValue, text(&value.to_string_lossy()));
            error
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        possible_values_of::<T>()
    }
}

/// The words of a type, as clap offers them.
pub(super) fn possible_values_of<T: FromText>() -> Option<Box<dyn Iterator<Item = PossibleValue>>> {
    let choices = T::choices();
    (!choices.is_empty()).then(|| Box::new(choices.into_iter().map(PossibleValue::new)) as Box<_>)
}

/// Which environment variables give an option's value when the command line does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// torchrun's, `PET_…`.
    Pet,
    /// Ours, `RANKRUN_…`.
    Rankrun,
    /// None has this option's name.
    None,
}

/// The options that no variable stands for: some of torchrun's, and those of a start by ssh, which hosts would inherit.
const WITHOUT_VARIABLE: [&str; 7] =
    ["logs-specs", "numa-binding", "print-completion", "hosts", "hostfile", "export", "ssh"];

/// torchrun's options for clap.
static TORCHRUN: LazyLock<Command> =
    LazyLock::new(|| with_flags(TorchrunArgs::augment_args(Command::new("torchrun").no_binary_name(true))));
/// All options of a launch for clap.
static RANKRUN: LazyLock<Command> = LazyLock::new(|| {
    let command = Command::new("rankrun").no_binary_name(true).version(env!("CARGO_PKG_VERSION"));
    with_flags(RankrunArgs::augment_args(command))
        .mut_arg("nproc_per_node", |arg| arg.visible_aliases(WORKER_COUNT_ALIASES).visible_short_alias('n'))
});
/// Other launchers' long names of `--nproc-per-node`, under our own name.
const WORKER_COUNT_ALIASES: [&str; 2] = ["num-processes", "num-gpus"];
/// mpirun's word for `--nproc-per-node`: a short name of two letters, which clap does not have.
pub(super) const MPIRUN_WORKER_COUNT: &str = "-np";
/// The options that may be typed under this name, for clap.
pub(super) fn command(cli_flavor: CliFlavor) -> &'static Command {
    match cli_flavor {
        CliFlavor::Rankrun => &RANKRUN,
        CliFlavor::Torchrun => &TORCHRUN,
    }
}

/// What clap needs to know of all options.
fn with_flags(command: Command) -> Command {
    let command = command.disable_help_flag(true).disable_version_flag(true).args_override_self(true);
    command.hide_possible_values(true).mut_args(|arg| match arg.kind() {
        // clap's own flags have a default, which would take the place of an earlier source.
        Kind::Flag if matches!(arg.get_action(), ArgAction::SetTrue) => {
            arg.action(ArgAction::Set).num_args(0).default_missing_value("true").required(false)
        }
        Kind::Flag if arg.get_action().takes_values() => arg.num_args(0).default_missing_value(""),
        Kind::Choice(choices) => arg.required(false).value_name(choices.join("|")),
        _ => arg.required(false),
    })
}

/// Every option that may be typed under this name.
pub(super) fn options(cli_flavor: CliFlavor) -> impl Iterator<Item = &'static Arg> {
    command(cli_flavor).get_arguments().filter(|arg| arg.get_long().is_some())
}

/// The option of this long name.
pub(super) fn find_option(long: &str) -> Option<&'static Arg> {
    RANKRUN.get_arguments().find(|arg| arg.get_long() == Some(long))
}

/// Every long name of an option: its own, then its aliases.
pub(super) fn long_names(option: &Arg) -> impl Iterator<Item = &str> {
    option.get_long().into_iter().chain(option.get_visible_aliases().unwrap_or_default())
}

/// Every letter of an option: its own, then its aliases.
pub(super) fn letters(option: &Arg) -> impl Iterator<Item = char> {
    option.get_short().into_iter().chain(option.get_visible_short_aliases().unwrap_or_default())
}

/// Whether the option of this command is one of torchrun's.
pub(super) fn is_torchruns(option: &Arg, command: &Command) -> bool {
    let group = command.get_groups().find(|group| group.get_id() == "TorchrunArgs");
    group.is_some_and(|group| group.get_args().any(|id| id == option.get_id()))
}

/// What is known of an option.
pub(crate) trait LaunchOption {
    /// The long name without dashes, with hyphens.
    fn long_name(&self) -> &str;
    /// The type of its values.
    fn kind(&self) -> Kind;
    /// What the help calls its value.
    fn value_name(&self) -> &str;
    /// Its variables.
    fn family(&self) -> Family;

    /// Both spellings with their dashes, each once: all hyphens, all underscores.
    fn spellings(&self) -> Vec<String> {
        let mut spellings = vec![format!("--{}", self.long_name())];
        if self.long_name().contains('-') {
            spellings.push(format!("--{}", self.long_name().replace('-', "_")));
        }
        spellings
    }

    /// The name of the variable of a family of variables.
    fn variable(&self) -> Option<String> {
        let prefix = match self.family() {
            Family::Pet => "PET_",
            Family::Rankrun => "RANKRUN_",
            Family::None => return None,
        };
        Some(format!("{prefix}{}", self.long_name().replace('-', "_").to_uppercase()))
    }
}

impl LaunchOption for Arg {
    fn long_name(&self) -> &str {
        self.get_long().unwrap_or_default()
    }

    fn kind(&self) -> Kind {
        let is = |types: [TypeId; 2]| types.iter().any(|known| self.get_value_parser().type_id() == *known);
        let choices = self.get_value_parser().possible_values().into_iter().flatten();
        let choices: Vec<String> = choices.map(|choice| choice.get_name().to_owned()).collect();
        match () {
            () if !self.get_action().takes_values() || is(types_of::<Flag>()) => Kind::Flag,
            () if self.get_value_parser().type_id() == TypeId::of::<bool>() => Kind::Flag,
            () if is(types_of::<i128>()) => Kind::Int,
            () if is(types_of::<f64>()) => Kind::Float,
            () if is(types_of::<StdinPolicy>()) => Kind::RankOrWord,
            () if choices.is_empty() => Kind::Text,
            () => Kind::Choice(choices),
        }
    }

    fn value_name(&self) -> &str {
        self.get_value_names().and_then(|names| names.first()).map_or("", |name| name.as_str())
    }

    fn family(&self) -> Family {
        match self.get_action() {
            ArgAction::Help | ArgAction::Version => Family::None,
            _ if WITHOUT_VARIABLE.contains(&self.long_name()) => Family::None,
            _ if is_torchruns(self, &RANKRUN) => Family::Pet,
            _ => Family::Rankrun,
        }
    }
}

/// All names of an option as argparse joins them: `-r/--redirects`.
pub(super) fn argparse_name(option: &Arg) -> String {
    let short = option.get_short().map(|letter| format!("-{letter}"));
    short.into_iter().chain(option.spellings()).collect::<Vec<_>>().join("/")
}

/// A type of values, alone and with its option.
const fn types_of<T: FromText>() -> [TypeId; 2] {
    [TypeId::of::<T>(), TypeId::of::<OptionValue<T>>()]
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;

    #[test]
    fn option_spellings_derive_from_long_name() {
        let option = |long| find_option(long).unwrap();
        let restarts = option("max-restarts");
        assert_eq!(restarts.spellings(), ["--max-restarts", "--max_restarts"]);
        assert_eq!(argparse_name(restarts), "--max-restarts/--max_restarts");
        assert_eq!(restarts.variable().as_deref(), Some("PET_MAX_RESTARTS"));
        assert_eq!(option("tee").spellings(), ["--tee"]);
        assert_eq!(argparse_name(option("tee")), "-t/--tee");
        assert_eq!(option("restart-window").variable().as_deref(), Some("RANKRUN_RESTART_WINDOW"));
        assert_eq!(option("numa-binding").variable(), None);
        assert_eq!(option("help").variable(), None);
    }

    #[test]
    fn option_kind_follows_from_field_type() {
        let choice = |words: &[&str]| Kind::Choice(words.iter().map(|word| (*word).to_owned()).collect());
        for (long, kind) in [
            ("help", Kind::Flag),
            ("standalone", Kind::Flag),
            ("verbose", Kind::Flag),
            ("nnodes", Kind::Text),
            ("log-dir", Kind::Text),
            ("max-restarts", Kind::Int),
            ("monitor-interval", Kind::Float),
            ("stdin", Kind::RankOrWord),
            ("start-method", choice(&START_METHODS)),
            ("device-visibility", choice(&["all", "own"])),
            ("print-completion", choice(TORCHRUN_SHELLS)),
        ] {
            assert_eq!(find_option(long).unwrap().kind(), kind, "{long}");
        }
    }

    #[test]
    fn flag_field_keeps_value_of_first_source() {
        #[derive(Default, Args)]
        struct Sample {
            #[arg(long)]
            loud: bool,
        }
        let command = with_flags(Sample::augment_args(Command::new("sample").no_binary_name(true)));
        assert_eq!(command.get_arguments().map(LaunchOption::kind).collect::<Vec<_>>(), [Kind::Flag]);
        let mut sample = Sample::default();
        for (words, is_loud) in [(&[][..], false), (&["--loud"], true), (&[], true)] {
            let matches = command.clone().try_get_matches_from(words).unwrap();
            sample.update_from_arg_matches(&matches).unwrap();
            assert_eq!(sample.loud, is_loud, "{words:?}");
        }
    }

    #[test]
    fn option_value_must_match_option_type() {
        fn takes<T: FromText>(text: &str) -> bool {
            T::from_text(OsStr::new(text)).is_some()
        }
        assert!(takes::<i128>(" +1_0 ") && !takes::<i128>("1.5"));
        assert!(takes::<String>(""));
        assert!(takes::<StdinPolicy>("all") && takes::<StdinPolicy>("3"));
        assert!(!takes::<StdinPolicy>("-1") && !takes::<StdinPolicy>("some"));
        assert!(takes::<StartMethod>("fork") && !takes::<StartMethod>("FORK"));
    }

    #[test]
    fn choices_are_words_of_their_types() {
        fn read<T: FromText + PartialEq + std::fmt::Debug>() -> Vec<T> {
            T::choices().iter().filter_map(|word| T::from_text(OsStr::new(word))).collect()
        }
        assert_eq!(read::<NumaBinding>(), NumaBinding::ALL);
        assert_eq!(read::<DeviceType>(), DeviceType::ALL);
        assert_eq!(read::<DeviceOrder>(), DeviceOrder::ALL);
        assert_eq!(read::<Visibility>(), [Visibility::Whole, Visibility::Own]);
        assert_eq!(read::<Shell>(), [Shell::Bash, Shell::Zsh, Shell::Tcsh]);
    }
}
