//! The settings of a launch and the source of each: the command line, a variable, or the default. Pure.
//!
//! `cli` resolves the settings. This module only lists the options and variables of each setting, to look up its
//! source. A test checks that both agree.

mod rendezvous;

use std::borrow::Cow;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use rankrun_contract::env::{
    ERROR_FILE, GROUP_RANK, GROUP_WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, MAX_RESTARTS,
    NCCL_LIBRARY, ROLE_NAME, ROLE_WORLD_SIZE, RUN_ID, SIGNALS_TO_HANDLE, USE_AGENT_STORE, WORLD_SIZE,
};

use super::{LaunchValue, Origins, Pending, RunIdLife};
use rankrun_core::device::choice::number;
use rankrun_core::device::{DeviceType, Visibility};
use rankrun_core::facts::Facts;
use rankrun_core::spec::setting::Origin;
use rankrun_core::spec::stop::{GraceCause, LeftoverPolicy};
use rankrun_core::spec::{
    Entrypoint, EventLog, LaunchSpec, LogDir, RendezvousSpec, StdinPolicy, StreamMap, Streams, Unhealthy,
};

/// One setting with its value and source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SettingLine {
    /// The name of the setting: its option without dashes, else a word of ours.
    pub name: Cow<'static, str>,
    /// The value that counts; `null` for none.
    pub value: Option<LaunchValue>,
    /// The option or variable that set it.
    pub source: SettingOrigin,
    /// Where other values were set, which do not count.
    pub overrides: Vec<SettingOrigin>,
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

impl From<Origin> for SettingOrigin {
    fn from(origin: Origin) -> Self {
        match origin {
            Origin::Option(name) => Self::Option { name: format!("--{name}") },
            Origin::Variable(name) => Self::Variable { name },
            Origin::File(place) => Self::File { path: place.path, line: place.line },
        }
    }
}

/// The places that a setting's value can come from.
pub(super) struct SettingOrigins<'a> {
    pub(super) spec: &'a LaunchSpec,
    pub(super) origins: &'a Origins,
    pub(super) facts: &'a Facts,
}

const STUCK_LIMIT: &str = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT";

/// The options that make the launcher write a vendor's variable.
const VISIBILITY_VARIABLES: [&str; 5] =
    ["devices", "device-order", "device-type", "device-visibility", "virtual-local-rank"];

/// Whether a vendor's variable controls which devices a process sees.
fn is_device_variable(name: &str) -> bool {
    let vendors = ["CUDA_", "HIP_", "ROCR_", "GPU_DEVICE_", "ZE_", "HABANA_", "HLS_", "ASCEND_"];
    vendors.iter().any(|prefix| name.starts_with(prefix))
}

fn time(time: Duration) -> String {
    humantime::format_duration(time).to_string()
}

fn setting(name: impl Into<Cow<'static, str>>, value: Option<String>, source: SettingOrigin) -> SettingLine {
    SettingLine {
        name: name.into(),
        value: value.map(|value| LaunchValue::Known(value.into())),
        source,
        overrides: Vec::new(),
    }
}

impl SettingOrigins<'_> {
    /// The one of these options that was set, else the first of these variables that is set and not empty.
    fn origin_of(&self, options: &[&str], variables: &[&str]) -> SettingOrigin {
        if let Some(origin) = self.origins.of_setting(options) {
            return origin.into();
        }
        let set = variables.iter().find(|name| self.facts.filled_variable(name).is_some());
        set.map_or(SettingOrigin::Default, |name| SettingOrigin::Variable { name: (*name).to_owned() })
    }

    /// Where the value of a variable that the launcher sets was given.
    pub(super) fn of_variable(&self, name: &str) -> SettingOrigin {
        match name {
            WORLD_SIZE | LOCAL_WORLD_SIZE | ROLE_WORLD_SIZE => self.origin_of(&["nproc-per-node"], &[]),
            GROUP_WORLD_SIZE => self.origin_of(&["nnodes"], &[]),
            GROUP_RANK if matches!(self.spec.rendezvous, RendezvousSpec::Static { .. }) => {
                self.origin_of(&["node-rank"], &[])
            }
            name if self.spec.defaults.connection_interfaces.contains(&name) => {
                SettingOrigin::Because { reason: SEVERAL_HOSTS }
            }
            "GLOO_SOCKET_IFNAME" | "TP_SOCKET_IFNAME" | "NCCL_SOCKET_IFNAME" => {
                self.origin_of(&["iface"], &[])
            }
            NCCL_LIBRARY => self.origin_of(&["nccl-lib"], &[]),
            ROLE_NAME => self.origin_of(&["role"], &[]),
            MASTER_ADDR => self.address(),
            MASTER_PORT => self.port(),
            MAX_RESTARTS => self.origin_of(&["max-restarts"], &[]),
            RUN_ID => self.origin_of(&["rdzv-id"], &[]),
            USE_AGENT_STORE => self.store_host(),
            ERROR_FILE => self.log_dir(),
            SIGNALS_TO_HANDLE => self.origin_of(&["signals-to-handle"], &[]),
            name if is_device_variable(name) => self.origin_of(&VISIBILITY_VARIABLES, &[]),
            "OMP_NUM_THREADS" | "TORCH_NCCL_ASYNC_ERROR_HANDLING" => SettingOrigin::Default,
            _ => SettingOrigin::Launcher,
        }
    }

    fn log_dir(&self) -> SettingOrigin {
        match &self.spec.logs.dir {
            LogDir::At(_) | LogDir::Off => self.origin_of(&["log-dir"], &[]),
            LogDir::Temporary(parent) | LogDir::ErrorFiles(parent) => {
                let names = |name: &&str| self.facts.filled_variable(name).map(Path::new) == Some(parent);
                let variable = ["TMPDIR", "TEMP", "TMP"].into_iter().find(names);
                variable
                    .map_or(SettingOrigin::Default, |name| SettingOrigin::Variable { name: name.to_owned() })
            }
        }
    }

    /// Every setting worth a line, including defaults.
    pub(super) fn settings(&self, run_id: RunIdLife) -> Vec<SettingLine> {
        let spec = self.spec;
        let option = |name, value| setting(name, value, self.origin_of(&[name], &[]));
        let run_id = match run_id {
            RunIdLife::Fixed => option("rdzv-id", Some(spec.rendezvous.run_id().0.clone())),
            RunIdLife::Fresh => SettingLine {
                name: "rdzv-id".into(),
                value: Some(LaunchValue::AtLaunch(Pending::RunId)),
                source: SettingOrigin::Default,
                overrides: Vec::new(),
            },
        };
        let mut settings = vec![
            option("nproc-per-node", Some(spec.workers.to_string())),
            option("max-restarts", Some(spec.max_restarts.to_string())),
            option("role", Some(spec.role.clone())),
            run_id,
        ];
        settings.extend(self.node_settings());
        settings.extend(self.restart_settings());
        settings.extend(self.store_settings());
        settings.extend(self.log_settings());
        settings.extend(self.shutdown_settings());
        settings.extend(self.grace_settings());
        settings.extend(self.independent_options());
        settings.extend([
            option("stdin", Some(stdin(spec.stdin))),
            option("virtual-local-rank", Some(yes_or_no(spec.devices.visibility == Visibility::Own))),
        ]);
        settings.extend(self.device_settings());
        settings.extend([option("leave-out", spec.external_worker.map(|local_rank| local_rank.to_string()))]);
        settings.extend(self.parent_error_file());
        settings.extend(self.python());
        for line in &mut settings {
            let overridden = self.origins.overridden.iter().filter(|(option, _)| *option == line.name);
            line.overrides = overridden.map(|(_, origin)| origin.clone().into()).collect();
        }
        settings
    }

    fn log_settings(&self) -> Vec<SettingLine> {
        let logs = &self.spec.logs;
        let dir = match &logs.dir {
            LogDir::Temporary(path) | LogDir::ErrorFiles(path) | LogDir::At(path) => {
                path.display().to_string()
            }
            LogDir::Off => "/dev/null".to_owned(),
        };
        let console = logs.console.as_ref().map(|ranks| {
            let ranks: Vec<String> = ranks.iter().map(ToString::to_string).collect();
            ranks.join(",")
        });
        let option = |name, value| setting(name, value, self.origin_of(&[name], &[]));
        let mut settings = vec![
            setting("log-dir", Some(dir), self.log_dir()),
            option("redirects", Some(streams(&logs.redirects))),
            option("tee", Some(streams(&logs.tee))),
            option("local-ranks-filter", console),
            setting("log-line-prefix-template", logs.prefix.clone(), self.prefix()),
        ];
        for (name, texts) in [
            ("duplicate-stdout-filters", &logs.duplicates.stdout),
            ("duplicate-stderr-filters", &logs.duplicates.stderr),
        ] {
            let texts: Vec<String> = texts.iter().map(|text| text.replace(',', ",,")).collect();
            settings.push(option(name, (!texts.is_empty()).then(|| texts.join(","))));
        }
        settings
    }

    /// Only where something is set: most jobs have no policy.
    fn restart_settings(&self) -> Vec<SettingLine> {
        let policy = &self.spec.restart;
        let rules: Vec<String> = policy.rules.iter().map(ToString::to_string).collect();
        let backoff = policy.backoff.as_ref();
        let progress = policy.progress.as_ref();
        let values = [
            ("restart-window", policy.window.map(time)),
            ("restart-delay", backoff.map(|backoff| time(backoff.delay))),
            ("restart-factor", backoff.map(|backoff| backoff.factor.to_string())),
            ("restart-max-delay", backoff.map(|backoff| time(backoff.cap))),
            ("restart-jitter", backoff.map(|backoff| backoff.jitter.to_string())),
            ("restart-reset", policy.reset_after.map(time)),
            ("restart-rules", (!rules.is_empty()).then(|| rules.join(","))),
            ("progress-dir", progress.map(|limit| limit.folder.display().to_string())),
            ("progress-restarts", progress.map(|limit| limit.restarts.to_string())),
        ];
        let given = values.into_iter().filter(|(_, value)| value.is_some());
        given.map(|(name, value)| setting(name, value, self.origin_of(&[name], &[]))).collect()
    }

    fn prefix(&self) -> SettingOrigin {
        match &self.spec.logs.prefix {
            None => SettingOrigin::Default,
            Some(_) => {
                self.origin_of(&["log-line-prefix-template"], &["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"])
            }
        }
    }

    fn shutdown_settings(&self) -> [SettingLine; 8] {
        let spec = self.spec;
        let grace = time(spec.stop.grace);
        let events = match spec.events {
            EventLog::Off => "null",
            EventLog::Console => "console",
        };
        let stuck = match spec.dstate_timeout {
            Some(_) => SettingOrigin::Variable { name: STUCK_LIMIT.to_owned() },
            None => SettingOrigin::Default,
        };
        let limit = spec.dstate_timeout.map(time);
        let leftovers = match spec.leftovers {
            LeftoverPolicy::Keep => None,
            LeftoverPolicy::End { grace } => Some(time(grace)),
        };
        let of_grace = self.origin_of(&["grace", "shutdown-timeout"], &["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]);
        let setting_of = |name, value| setting(name, value, self.origin_of(&[name], &[]));
        let option = |name, value| setting_of(name, Some(value));
        let warning = spec.time_limit.and_then(|limit| limit.warning);
        [
            setting("grace", Some(grace), of_grace),
            setting("leftover-grace", leftovers, self.origin_of(&["leftover-grace"], &[])),
            setting_of("start-timeout", spec.start_timeout.map(time)),
            setting_of("time-limit", spec.time_limit.map(|limit| time(limit.limit))),
            setting_of("warn-signal", warning.map(|w| format!("{}@{}", w.signal, time(w.before)))),
            setting("stuck-limit", limit, stuck),
            option("signals-to-handle", spec.signals.text.clone()),
            option("event-log-handler", events.to_owned()),
        ]
    }

    /// Graces of their own, where there are any.
    fn grace_settings(&self) -> impl Iterator<Item = SettingLine> + '_ {
        GraceCause::ALL.into_iter().filter_map(|cause| {
            let grace = self.spec.stop.grace_for.get(cause)?;
            let name = cause.setting();
            Some(setting(name, Some(time(grace)), self.origin_of(&[name], &[])))
        })
    }

    /// The options of one struct, by the names of its fields.
    fn independent_options(&self) -> Vec<SettingLine> {
        let Ok(Value::Object(options)) = serde_json::to_value(&self.spec.options) else { return Vec::new() };
        let line = |(name, value): (String, Value)| {
            let value = match value {
                Value::Null => None,
                Value::String(text) => Some(text),
                Value::Bool(is_set) => Some(yes_or_no(is_set)),
                other => Some(other.to_string()),
            };
            let source = self.origin_of(&[&name], &[]);
            setting(name, value, source)
        };
        options.into_iter().map(line).collect()
    }

    /// The requested devices; the chosen ones are shown at each rank.
    fn device_settings(&self) -> [SettingLine; 6] {
        let LaunchSpec { devices, device_request: request, .. } = self.spec;
        let identities = devices.workers.iter().filter_map(|worker| worker.identity.as_ref());
        let cards: Vec<String> = identities.map(|device| number(&device.accelerator)).collect();
        let written = request.devices.as_ref().map(|devices| devices.value.0.clone());
        let listed = written.or_else(|| (!cards.is_empty()).then(|| cards.join(",")));
        let kind = devices.workers.first().map(|worker| worker.kind.to_string());
        let visible = match devices.visibility {
            Visibility::Whole => "all",
            Visibility::Own => "own",
        };
        let check = self.spec.device_check().map(|check| match check {
            Unhealthy::Refuse => "refuse".to_owned(),
            Unhealthy::Exclude => "exclude".to_owned(),
        });
        let order = request.order.as_ref().map(|order| order.value.as_str().to_owned());
        let binding = request.binding.as_ref().map(|binding| binding.value.as_str().to_owned());
        let option = |name, value| setting(name, value, self.origin_of(&[name], &[]));
        let of_visibility = self.origin_of(&["device-visibility", "virtual-local-rank"], &[]);
        [
            setting("devices", listed, self.origin_of(&["devices"], &self.visibility_variables())),
            setting("device-type", kind, self.origin_of(&["device-type"], &[])),
            option("device-order", order),
            setting("device-visibility", Some(visible.to_owned()), of_visibility),
            setting("check-devices", check, self.origin_of(&["exclude-unhealthy", "check-devices"], &[])),
            option("numa-binding", binding),
        ]
    }

    /// The visibility variables for a job like this one.
    fn visibility_variables(&self) -> Vec<&'static str> {
        match self.spec.devices.workers.first().map(|worker| worker.kind) {
            Some(DeviceType::Cuda) => vec!["CUDA_VISIBLE_DEVICES"],
            Some(DeviceType::Rocm) => {
                vec!["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"]
            }
            Some(DeviceType::Xpu) => vec!["ZE_AFFINITY_MASK"],
            Some(DeviceType::Hpu) => vec!["HABANA_VISIBLE_MODULES"],
            Some(DeviceType::Npu) => vec!["ASCEND_RT_VISIBLE_DEVICES"],
            Some(DeviceType::Mps | DeviceType::Cpu) | None => Vec::new(),
        }
    }

    fn parent_error_file(&self) -> Option<SettingLine> {
        let path = self.spec.parent_error_file.as_ref()?;
        let source = SettingOrigin::Variable { name: ERROR_FILE.to_owned() };
        Some(setting("own-error-file", Some(path.display().to_string()), source))
    }

    fn python(&self) -> Option<SettingLine> {
        let python = match &self.spec.entrypoint {
            Entrypoint::Script { python, .. }
            | Entrypoint::Module { python, .. }
            | Entrypoint::RunPath { python, .. } => python,
            Entrypoint::Program { .. } => return None,
        };
        let value = Some(python.display().to_string());
        Some(setting("python", value, self.origin_of(&[], &["PYTHON_EXEC"])))
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
