//! The settings of a launch and the source of each: the command line, a variable, or the default. Pure.
//!
//! `cli` resolves the settings. This module only lists the options and variables of each setting, to look up its
//! source. A test checks that both agree.

mod devices;
mod no_effect;
mod rendezvous;

use devices::{DEVICE_OPTIONS, is_device_variable};

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use rankrun_contract::env::{
    ERROR_FILE, GROUP_RANK, GROUP_WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, MAX_RESTARTS,
    NCCL_LIBRARY, ROLE_NAME, ROLE_WORLD_SIZE, RUN_ID, SIGNALS_TO_HANDLE, USE_AGENT_STORE, WORLD_SIZE,
};

use super::{LaunchValue, Origins, Pending};
use rankrun_core::facts::Facts;
use rankrun_core::hang::recorder_dumps::{BUFFER_SIZE, DUMP_ON_TIMEOUT, DUMP_STEM, STACK_TRACE};
use rankrun_core::hang::trainer_access::{SERVER_TOKEN, SERVER_URL};
use rankrun_core::notice::Notice;
use rankrun_core::spec::options::IndependentOptions;
use rankrun_core::spec::setting::{Origin, Setting};
use rankrun_core::spec::stop::{GraceCause, LeftoverPolicy};
use rankrun_core::spec::{
    Entrypoint, EventLog, LaunchSpec, LogDir, RendezvousSpec, StdinPolicy, StreamMap, Streams,
};

/// One setting with its value and source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SettingLine {
    /// The name of the setting: its option without dashes, else a word of this command.
    pub name: Cow<'static, str>,
    /// The value that counts; `null` for none.
    pub value: Option<LaunchValue>,
    /// The option or variable that set it.
    pub source: SettingOrigin,
    /// Whether the launch uses the value; a default counts as used.
    pub has_effect: bool,
    /// Where other values were set, which do not count.
    pub overrides: Vec<SettingOrigin>,
    /// The default in words, where it is not a value.
    pub default: Option<String>,
}

/// The source of a setting's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SettingOrigin {
    /// By this option of the command line.
    Option {
        /// The option's name, with its dashes.
        name: String,
    },
    /// An environment variable set the value.
    Variable {
        /// The name of the environment variable.
        name: String,
    },
    /// By this line of a configuration file.
    File {
        /// The path as the user wrote it.
        path: String,
        /// The line number, counted from 1.
        line: usize,
    },
    /// Neither an option nor a variable set it.
    Default,
    /// The launcher computes it, such as the device of each rank or the job id.
    Launcher,
    /// Nowhere: the launcher sets it for this reason.
    Because {
        /// The reason, as text for the user.
        reason: &'static str,
    },
}

/// Why libraries that look up names are given an interface.
const SEVERAL_HOSTS: &str = "several hosts: a host's own name may mean 127.0.0.1";

impl From<&Setting<OsString>> for SettingOrigin {
    fn from(setting: &Setting<OsString>) -> Self {
        match &setting.origin {
            Origin::Option(name) => Self::Option { name: format!("--{name}") },
            Origin::Variable(name) => Self::Variable { name: name.clone() },
            Origin::File(place) => Self::File { path: place.path.clone(), line: place.line },
        }
    }
}

/// The places that a setting's value can come from.
pub(super) struct SettingOrigins<'a> {
    pub(super) spec: &'a LaunchSpec,
    pub(super) origins: &'a Origins,
    pub(super) notices: &'a [Notice],
    pub(super) facts: &'a Facts,
}

const DEFAULT_PREFIX: &str = "[${role_name}${local_rank}]:";
/// The options that count the workers of this node.
const WORKER_COUNT: [&str; 2] = ["nproc-per-node", "total-workers"];
const DSTATE_LIMIT: &str = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT";

fn time(time: Duration) -> String {
    humantime::format_duration(time).to_string()
}

fn known(value: impl Into<OsString>) -> Option<LaunchValue> {
    Some(LaunchValue::Known(value.into()))
}

/// The place of the value that counts, and the places of those that lost.
type Places = (SettingOrigin, Vec<SettingOrigin>);

fn setting(
    name: impl Into<Cow<'static, str>>,
    value: Option<LaunchValue>,
    (source, overrides): Places,
) -> SettingLine {
    SettingLine { name: name.into(), value, source, has_effect: true, overrides, default: None }
}

impl SettingOrigins<'_> {
    /// The first place of the settings that count; all others of them, and of those that lost to them, lost.
    fn places(&self, counting: &[&str], lost: &[&str]) -> Places {
        let mut places = self.origins.of_setting(counting).into_iter().map(SettingOrigin::from);
        let source = places.next().unwrap_or(SettingOrigin::Default);
        (source, places.chain(self.origins.of_setting(lost).into_iter().map(SettingOrigin::from)).collect())
    }

    fn line(
        &self,
        name: impl Into<Cow<'static, str>>,
        value: Option<String>,
        counting: &[&str],
        lost: &[&str],
    ) -> SettingLine {
        let written =
            || Some(&self.origins.of_setting(counting).first()?.value).filter(|text| !text.is_empty());
        let value = value.map(OsString::from).or_else(|| written().cloned());
        setting(name, value.and_then(known), self.places(counting, lost))
    }

    /// A setting that one option stands for.
    fn option(&self, name: &'static str, value: Option<String>) -> SettingLine {
        self.line(name, value, &[name], &[])
    }

    /// The setting with a variable that counts where nothing else sets it.
    fn with_variable(&self, mut line: SettingLine, name: &str) -> SettingLine {
        let Some(value) = self.facts.filled_variable(name) else { return line };
        let variable = SettingOrigin::Variable { name: name.to_owned() };
        if line.source == SettingOrigin::Default {
            line.source = variable;
            line.value = line.value.or_else(|| known(value));
        } else {
            line.overrides.push(variable);
        }
        line
    }

    fn is_given(&self, name: &str) -> bool {
        self.origins.given.iter().any(|(known, _)| *known == name)
    }

    /// Whether each launch has a run id of its own.
    pub(super) fn is_run_id_fresh(&self) -> bool {
        let run_id = &self.spec.rendezvous.run_id().0;
        let given = self.origins.of_setting(&["rdzv-id"]);
        run_id != "none" && given.first().is_none_or(|given| given.value != **run_id)
    }

    /// Where one of these options was set.
    fn origin_of(&self, options: &[&str]) -> SettingOrigin {
        self.places(options, &[]).0
    }

    /// The first of these variables that is set.
    fn variable_of(&self, variables: &[&str]) -> Places {
        let set = variables.iter().find(|name| self.facts.filled_variable(name).is_some());
        let variable = |name: &&str| SettingOrigin::Variable { name: (*name).to_owned() };
        (set.map_or(SettingOrigin::Default, variable), Vec::new())
    }

    /// Where the value of a variable that the launcher sets was given.
    pub(super) fn of_variable(&self, name: &str) -> SettingOrigin {
        match name {
            WORLD_SIZE | LOCAL_WORLD_SIZE | ROLE_WORLD_SIZE => self.origin_of(&WORKER_COUNT),
            // Of a machine with several nodes of the rendezvous.
            GROUP_RANK | GROUP_WORLD_SIZE if self.is_given(name) => self.origin_of(&[name]),
            GROUP_WORLD_SIZE => self.origin_of(&["nnodes"]),
            GROUP_RANK if matches!(self.spec.rendezvous, RendezvousSpec::Static { .. }) => self.group_rank(),
            name if self.spec.defaults.connection_interfaces.contains(&name) => {
                SettingOrigin::Because { reason: SEVERAL_HOSTS }
            }
            "GLOO_SOCKET_IFNAME" | "TP_SOCKET_IFNAME" | "NCCL_SOCKET_IFNAME" => self.origin_of(&["iface"]),
            NCCL_LIBRARY => self.origin_of(&["nccl-lib"]),
            ROLE_NAME => self.origin_of(&["role"]),
            MASTER_ADDR => self.address().0,
            MASTER_PORT => self.port().0,
            MAX_RESTARTS => self.origin_of(&["max-restarts"]),
            RUN_ID => self.origin_of(&["rdzv-id"]),
            USE_AGENT_STORE => self.store_host().0,
            ERROR_FILE | DUMP_STEM => self.log_dir().0,
            BUFFER_SIZE | DUMP_ON_TIMEOUT | STACK_TRACE => self.origin_of(&["hang-timeout"]),
            SIGNALS_TO_HANDLE => self.origin_of(&["signals-to-handle"]),
            name if is_device_variable(name) => self.origin_of(&DEVICE_OPTIONS),
            "OMP_NUM_THREADS" => self.origin_of(&["bind-cores"]),
            "TORCH_NCCL_ASYNC_ERROR_HANDLING" => SettingOrigin::Default,
            SERVER_URL | SERVER_TOKEN | "no_proxy" => self.origin_of(&["progress"]),
            _ => SettingOrigin::Launcher,
        }
    }

    fn log_dir(&self) -> Places {
        match &self.spec.logs.dir {
            LogDir::At(_) | LogDir::Off => self.places(&["log-dir"], &[]),
            LogDir::Temporary(parent) | LogDir::ErrorFiles(parent) => {
                let names = |name: &&str| self.facts.filled_variable(name).map(Path::new) == Some(parent);
                let variable = ["TMPDIR", "TEMP", "TMP"].into_iter().find(names);
                (self.variable_of(variable.as_slice()).0, self.places(&[], &["log-dir"]).1)
            }
        }
    }

    /// Every setting, including defaults.
    pub(super) fn settings(&self) -> Vec<SettingLine> {
        let spec = self.spec;
        let run_id = if self.is_run_id_fresh() {
            setting("rdzv-id", Some(LaunchValue::AtLaunch(Pending::RunId)), self.places(&[], &["rdzv-id"]))
        } else {
            self.option("rdzv-id", Some(spec.rendezvous.run_id().0.clone()))
        };
        let mut settings = vec![
            self.line("nproc-per-node", Some(spec.workers.to_string()), &WORKER_COUNT, &[]),
            self.option("max-restarts", Some(spec.max_restarts.to_string())),
            self.option("role", Some(spec.role.clone())),
            run_id,
        ];
        settings.extend(self.node_settings());
        settings.extend(self.restart_settings());
        settings.extend(self.store_settings());
        settings.extend(self.log_settings());
        settings.extend(self.grace_settings());
        settings.extend(self.shutdown_settings());
        settings.extend(self.independent_options());
        settings.push(self.option("stdin", Some(stdin(spec.stdin))));
        settings.push(self.wrappers());
        settings.extend(self.device_settings());
        settings.push(self.with_variable(self.option("verbose", None), "LOGLEVEL"));
        for option in &self.origins.options {
            if settings.iter().all(|line| line.name != option.name) {
                settings.push(self.option(option.name, None));
            }
        }
        settings.iter_mut().for_each(|line| self.add_default(line));
        self.mark_without_effect(&mut settings);
        settings.extend(self.parent_error_file());
        settings.extend(self.python());
        settings
    }

    fn add_default(&self, line: &mut SettingLine) {
        let option = self.origins.options.iter().find(|option| option.name == line.name);
        let is_default = line.source == SettingOrigin::Default && line.value.is_none();
        if let Some(option) = option.filter(|_| is_default) {
            line.value = option.flag.and_then(known);
            line.default.clone_from(&option.default);
        }
    }

    fn log_settings(&self) -> Vec<SettingLine> {
        let logs = &self.spec.logs;
        let dir = match &logs.dir {
            LogDir::Temporary(path) | LogDir::ErrorFiles(path) | LogDir::At(path) => path,
            LogDir::Off => Path::new("/dev/null"),
        };
        let prefix = logs.prefix.as_deref().unwrap_or(DEFAULT_PREFIX);
        let prefix = self.option("log-line-prefix-template", Some(prefix.to_owned()));
        vec![
            setting("log-dir", known(dir), self.log_dir()),
            self.option("redirects", Some(streams(&logs.redirects))),
            self.option("tee", Some(streams(&logs.tee))),
            self.option("local-ranks-filter", None),
            self.with_variable(prefix, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"),
            self.option("duplicate-stdout-filters", None),
            self.option("duplicate-stderr-filters", None),
        ]
    }

    fn restart_settings(&self) -> [SettingLine; 9] {
        let policy = &self.spec.restart;
        let rules: Vec<String> = policy.rules.iter().map(ToString::to_string).collect();
        let backoff = policy.backoff.as_ref();
        let progress = policy.progress.as_ref();
        [
            ("restart-window", policy.window.map(time)),
            ("restart-delay", backoff.map(|backoff| time(backoff.delay))),
            ("restart-factor", backoff.map(|backoff| backoff.factor.to_string())),
            ("restart-max-delay", backoff.map(|backoff| time(backoff.cap))),
            ("restart-jitter", backoff.map(|backoff| backoff.jitter.to_string())),
            ("restart-reset", policy.reset_after.map(time)),
            ("restart-rules", (!rules.is_empty()).then(|| rules.join(","))),
            ("progress-dir", None),
            ("progress-restarts", progress.map(|limit| limit.restarts.to_string())),
        ]
        .map(|(name, value)| self.option(name, value))
    }

    fn shutdown_settings(&self) -> [SettingLine; 9] {
        let spec = self.spec;
        let events = match spec.events {
            EventLog::Off => "null",
            EventLog::Console => "console",
        };
        let dstate = spec.dstate_timeout.map(|_| DSTATE_LIMIT);
        let leftovers = match spec.leftovers {
            LeftoverPolicy::Keep => "keep".to_owned(),
            LeftoverPolicy::End { grace } => time(grace),
        };
        let warning = spec.time_limit.and_then(|limit| limit.warning);
        [
            self.option("leftover-grace", Some(leftovers)),
            self.option("start-timeout", spec.start_timeout.map(time)),
            self.option("hang-timeout", spec.hang.timeout.map(time)),
            self.option("first-step-timeout", spec.hang.first_step.map(time)),
            self.option("time-limit", spec.time_limit.map(|limit| time(limit.limit))),
            self.option("warn-signal", warning.map(|w| format!("{}@{}", w.signal, time(w.before)))),
            setting(
                "stuck-limit",
                spec.dstate_timeout.map(time).and_then(known),
                self.variable_of(dstate.as_slice()),
            ),
            self.option("signals-to-handle", Some(spec.signals.text.clone())),
            self.option("event-log-handler", Some(events.to_owned())),
        ]
    }

    /// The grace, and those of single causes, which a grace of the command line or a variable overrides.
    fn grace_settings(&self) -> Vec<SettingLine> {
        let stop = &self.spec.stop;
        let line = self.line("grace", Some(time(stop.grace)), &["grace", "shutdown-timeout"], &[]);
        let line = self.with_variable(line, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
        let second = SettingLine { name: "shutdown-timeout".into(), ..line.clone() };
        let causes = GraceCause::ALL.map(|cause| {
            let own = self.option(cause.setting(), stop.grace_for.get(cause).map(time));
            if stop.grace_for.get(cause).is_some() || own.source == SettingOrigin::Default {
                return own;
            }
            SettingLine { name: own.name, overrides: vec![own.source], ..line.clone() }
        });
        [line, second].into_iter().chain(causes).collect()
    }

    /// The options of one struct, by the names of its fields.
    fn independent_options(&self) -> Vec<SettingLine> {
        let spec = self.spec;
        let stop_signal_to = Some(spec.options.stop_target(spec.cli_flavor));
        let options = IndependentOptions { stop_signal_to, ..spec.options.clone() };
        let Ok(Value::Object(options)) = serde_json::to_value(&options) else { return Vec::new() };
        let line = |(name, value): (String, Value)| {
            let value = match value {
                Value::Null => None,
                Value::String(text) => Some(text),
                Value::Bool(is_set) => Some(yes_or_no(is_set)),
                other => Some(other.to_string()),
            };
            self.line(name.clone(), value, &[&name], &[])
        };
        options.into_iter().map(line).collect()
    }

    /// Each wrapper of the command line counts.
    fn wrappers(&self) -> SettingLine {
        let wrappers = &self.spec.wrappers;
        let texts: Vec<String> = wrappers.iter().map(|wrapper| wrapper.command.to_string()).collect();
        let mut line = self.option("wrap", (!texts.is_empty()).then(|| texts.join("; ")));
        line.overrides.retain(|place| *place != line.source);
        line
    }

    fn parent_error_file(&self) -> Option<SettingLine> {
        let path = self.spec.parent_error_file.as_ref()?;
        let source = SettingOrigin::Variable { name: ERROR_FILE.to_owned() };
        Some(setting("own-error-file", known(path), (source, Vec::new())))
    }

    fn python(&self) -> Option<SettingLine> {
        let python = match &self.spec.entrypoint {
            Entrypoint::Script { python, .. }
            | Entrypoint::Module { python, .. }
            | Entrypoint::RunPath { python, .. } => python,
            Entrypoint::Program { .. } => return None,
        };
        Some(setting("python", known(python), self.variable_of(&["PYTHON_EXEC"])))
    }
}

fn yes_or_no(yes: bool) -> String {
    if yes { "yes" } else { "no" }.to_owned()
}

fn stdin(policy: StdinPolicy) -> String {
    match policy {
        StdinPolicy::All => "all".to_owned(),
        StdinPolicy::Only(local_rank) => local_rank.to_string(),
        StdinPolicy::None => "none".to_owned(),
    }
}

fn streams(map: &StreamMap) -> String {
    let bits = |streams: &Streams| u8::from(streams.stdout) + 2 * u8::from(streams.stderr);
    match map {
        StreamMap::All(streams) => bits(streams).to_string(),
        StreamMap::Ranks(ranks) => {
            let items: Vec<String> =
                ranks.iter().map(|(rank, streams)| format!("{rank}:{}", bits(streams))).collect();
            items.join(",")
        }
    }
}
