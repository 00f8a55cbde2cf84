//! The plan of a launch, without any of its effects. Pure: spec + facts → [`Explanation`] → text, JSON or a script.
//!
//! It uses the code of a launch: the same spec, the same placement, the same builder of commands. A fact that is only
//! known at launch has a [`LaunchValue`] that says so. Nothing here guesses: unknown facts are left out.

mod json;
mod nodes;
mod plan;
mod request;
mod script;
mod settings;
mod text;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use rankrun_core::posix::Signal;
use serde::Serialize;

use rankrun_contract::env::{MASTER_ADDR, MASTER_PORT, Master, RUN_ID};
use rankrun_contract::rank::{Generation, JobId, RestartCount};

pub use nodes::{ListenPorts, NodesSection};
use nodes::{initial_round, is_agreed_on, nodes_of};
use plan::LaunchPlan;
use rankrun_core::device::choice::number;
use rankrun_core::device::{ChosenDevice, SettingNames};
use rankrun_core::facts::Facts;
use rankrun_core::notice::Notice;
use rankrun_core::placement;
use rankrun_core::plain::plain;
use rankrun_core::rendezvous::Round;
use rankrun_core::spec::stop::{GraceCause, StopTarget};
use rankrun_core::spec::{CliFlavor, LaunchSpec, RendezvousSpec, StoreHost};
use rankrun_core::worker_command::GenerationContext;
use rankrun_host::error::LaunchError;
use rankrun_host::logs::tree::Attempt;
use rankrun_host::process::signal::HandledSignals;
pub use request::{ExplainForm, ExplainRequest, KnownOption, Origins, ReadAs};
use settings::SettingOrigins;
pub use settings::{SettingLine, SettingOrigin};
use text::ShownSettings;
pub use text::Style;

/// The version of the JSON's shape. New fields do not change it; a present field keeps its name and meaning.
const VERSION: u32 = 1;

/// Everything that a launch would start, and why so. As JSON this is one object with these names.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// The version of this object's shape.
    pub version: u32,
    /// The name of the command with the rules in force: `rankrun` or `torchrun`.
    pub name: &'static str,
    /// The command line as rankrun read it, where it was another launcher's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_as: Option<ReadAs>,
    /// The working directory of the workers.
    pub working_folder: Text,
    /// The settings of the launch, with the source of each.
    pub settings: Vec<SettingLine>,
    /// The run id of the job.
    pub run_id: LaunchValue,
    /// The store that the workers rendezvous at.
    pub store: Store,
    /// The multi-node part of the launch; `None` for a job of one node.
    pub nodes: Option<NodesSection>,
    /// The signals that end the job.
    pub signals: Signals,
    /// How often the workers are started again.
    pub max_restarts: u32,
    /// The folder of the first generation's logs and error files, if there is one.
    pub log_folder: Option<LaunchValue>,
    /// The local rank that `--leave-out` leaves to be started by hand.
    #[serde(rename = "left_out")]
    pub external_worker: Option<u32>,
    /// The warnings that the launch would print before the start.
    pub warnings: Vec<String>,
    /// The workers of this node, by local rank.
    pub ranks: Vec<WorkerPlan>,
}

/// Bytes that are most often text: in JSON a string, or `{"bytes": […]}` for invalid UTF-8.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text(pub OsString);

/// A value that may be known only at launch. In JSON a [`Text`], or `{"at_launch": …}` with the kind of value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LaunchValue {
    /// A value that is known before the launch.
    Known(OsString),
    /// A value that only the launch determines.
    AtLaunch(Pending),
}

/// A kind of value that is known only at launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pending {
    /// A port that is free then.
    FreePort,
    /// A run id that is made up then.
    RunId,
    /// The nodes of the job agree on the value.
    Agreed,
    /// The interface by which this node reaches the rendezvous store.
    Interface,
    /// The job id that marks its processes.
    Mark,
    /// A path in a folder with a random name, as a shell pattern.
    Path(PathBuf),
}

/// The store that the workers rendezvous at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Store {
    /// The value of `MASTER_ADDR` for the workers.
    pub host: LaunchValue,
    /// The value of `MASTER_PORT` for the workers.
    pub port: LaunchValue,
    /// `agent`, or `rank 0` where the workers open their own.
    pub opened_by: &'static str,
    /// The rendezvous endpoint, where that is another one.
    pub endpoint: Option<EndpointSummary>,
}

/// The rendezvous endpoint of the agents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EndpointSummary {
    /// The host name or address of the endpoint.
    pub host: String,
    /// The TCP port of the endpoint.
    pub port: LaunchValue,
}

/// The signals that end the job, and their effects.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Signals {
    /// These stop the job: the workers get the same one, or `worker_signal`.
    pub stop: Vec<&'static str>,
    /// These go on to the workers, and nothing else happens.
    pub forward: Vec<&'static str>,
    /// The signal that the workers get in every stop, where it is set.
    pub worker_signal: Option<&'static str>,
    /// The processes of a worker that get it.
    pub worker_signal_to: StopTarget,
    /// The grace period from a stop to SIGKILL, in seconds.
    pub grace_seconds: f64,
    /// The same for single causes, by their keys in `[stop.grace-for]`.
    pub grace_for_seconds: BTreeMap<&'static str, f64>,
    /// A worker in uninterruptible sleep for longer has failed.
    #[serde(rename = "stuck_seconds")]
    pub dstate_seconds: Option<f64>,
}

/// One worker and everything it is started with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorkerPlan {
    /// Its index in the job; `null` where it depends on the other nodes.
    pub rank: Option<u32>,
    /// The index of the worker on its node.
    pub local_rank: u32,
    /// The device that the worker computes on.
    pub device: String,
    /// Which of the node's devices that is, where there are some.
    pub card: Option<DeviceSummary>,
    /// The CPUs that it is bound to.
    pub cpus: Option<Vec<u32>>,
    /// The path of the file that is executed.
    pub program: Text,
    /// The arguments; the first one is the program's name.
    pub argv: Vec<Text>,
    /// `launcher` for the launcher's own standard input, `terminal` for a worker started by hand, else `nothing`.
    pub stdin: &'static str,
    /// The destination of its standard output.
    pub stdout: StreamTarget,
    /// The destination of its standard error.
    pub stderr: StreamTarget,
    /// The path of the worker's error file.
    pub error_file: Option<LaunchValue>,
    /// The variables that the launcher sets or changes.
    pub variables: Vec<Variable>,
    /// The variables that the launcher has and it has not.
    pub unset: Vec<&'static str>,
    /// The whole environment of the worker.
    pub environment: Vec<EnvironmentEntry>,
}

/// One of the node's chosen devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceSummary {
    /// Its number as its vendor's tool counts; `1:0` for the first MIG device of GPU 1.
    pub index: String,
    /// The product name of the device.
    pub name: String,
    /// The UUID of the device, if known.
    pub uuid: Option<String>,
    /// The PCI address of the device, if known.
    pub pci: Option<String>,
    /// The NUMA node that it hangs on.
    pub numa_node: Option<u32>,
    /// The option or variable that chose it.
    pub chosen_by: String,
    /// The device in a message, without the way it was chosen.
    #[serde(skip)]
    pub title: String,
}

impl DeviceSummary {
    fn new(card: &ChosenDevice, names: &SettingNames) -> Self {
        let device = &card.accelerator;
        Self {
            index: number(device),
            name: plain(&device.name),
            uuid: device.uuid.as_deref().map(plain),
            pci: device.pci.map(|pci| pci.to_string()),
            numa_node: device.numa_node,
            chosen_by: card.chosen_by(names),
            title: card.to_string(),
        }
    }
}

/// The destination of one stream of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "to", rename_all = "snake_case")]
pub enum StreamTarget {
    /// The worker has the launcher's own.
    Launcher,
    /// The terminal in which the worker is started by hand.
    Terminal,
    /// A log file and not the console.
    File {
        /// The path of the log file.
        file: LaunchValue,
    },
    /// Through the launcher, which keeps lines whole.
    Console {
        /// The prefix of each line on the console.
        prefix: Option<String>,
        /// The log file with a copy.
        file: Option<LaunchValue>,
    },
}

/// A variable that the launcher sets or changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Variable {
    /// The name of the setting.
    pub name: &'static str,
    /// The value of the setting for this worker.
    pub value: LaunchValue,
    /// The option or variable that set it.
    pub source: SettingOrigin,
    /// The value in the launcher's own environment, where that is another one.
    pub was: Option<Text>,
}

/// One variable of a worker's environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EnvironmentEntry {
    /// The name of the variable.
    pub name: Text,
    /// The value of the variable.
    pub value: LaunchValue,
}

/// Returns the plan of a launch; `handled` are the signals that the launcher would handle here.
///
/// # Errors
/// An argument or variable that no program can be given, as at launch.
pub fn explain(
    request: &ExplainRequest,
    facts: &Facts,
    handled: &HandledSignals,
) -> Result<Explanation, LaunchError> {
    let spec = &request.spec;
    let sources = SettingOrigins { spec, origins: &request.origins, notices: &request.notices, facts };
    let run_id = spec.rendezvous.run_id();
    let known_run_id = (!sources.is_run_id_fresh()).then_some(run_id);
    let plan = LaunchPlan {
        spec,
        facts,
        sources: &sources,
        context: generation_context(spec),
        attempt: Attempt::planned(&spec.logs.dir, known_run_id, spec.workers),
    };
    let placements = placement::assign_ranks(&spec.devices.workers, &plan.context.round);
    let ranks = placements.iter().map(|placement| plan.worker(placement)).collect::<Result<_, _>>()?;
    Ok(Explanation {
        version: VERSION,
        name: match spec.cli_flavor {
            CliFlavor::Rankrun => "rankrun",
            CliFlavor::Torchrun => "torchrun",
        },
        read_as: request.read_as.clone(),
        working_folder: Text(facts.working_folder().into_os_string()),
        settings: sources.settings(),
        run_id: plan.value(RUN_ID, OsStr::new(&run_id.0)),
        store: store_of(spec),
        nodes: nodes_of(spec),
        signals: signals_of(spec, handled),
        max_restarts: spec.max_restarts.0,
        log_folder: plan.attempt.as_ref().map(|attempt| path_pattern(attempt.folder())),
        external_worker: spec.external_worker.map(|local_rank| local_rank.0),
        warnings: warnings(&request.notices),
        ranks,
    })
}

/// All notices but the device assignment, which is shown at each rank, and a run id that no launch will have.
fn warnings(notices: &[Notice]) -> Vec<String> {
    let is_elsewhere =
        |notice: &&Notice| matches!(notice, Notice::WorkerDevice { .. } | Notice::MadeUpRunId { .. });
    let warnings = notices.iter().filter(|notice| !is_elsewhere(notice));
    warnings.map(ToString::to_string).collect()
}

/// The answer, in the form that was asked for.
#[must_use]
pub fn render(explanation: &Explanation, question: &ExplainRequest, style: Style) -> Vec<u8> {
    match question.form {
        ExplainForm::Brief => text::render(explanation, style, ShownSettings::Differing).into_bytes(),
        ExplainForm::Full => text::render(explanation, style, ShownSettings::All).into_bytes(),
        ExplainForm::Json => json::render(explanation),
        ExplainForm::Script(local_rank) => script::worker_script(explanation, local_rank).render(),
    }
}

/// The first generation of a job that does not exist.
fn generation_context(spec: &LaunchSpec) -> GenerationContext {
    let store = spec.rendezvous.store();
    let master = Master {
        addr: store.addr.to_owned(),
        port: store.port,
        uses_agent_store: store.host == StoreHost::Agent,
    };
    GenerationContext {
        generation: Generation(0),
        restart_count: RestartCount(0),
        round: initial_round(spec, Round::of_one_node(spec.workers, master)),
        job: JobId(String::new()),
    }
}

fn store_of(spec: &LaunchSpec) -> Store {
    let rendezvous = &spec.rendezvous;
    let store = rendezvous.store();
    let known =
        |name, value| if is_agreed_on(spec, name) { LaunchValue::AtLaunch(Pending::Agreed) } else { value };
    Store {
        host: known(MASTER_ADDR, LaunchValue::Known(store.addr.into())),
        port: known(MASTER_PORT, port(store.port)),
        opened_by: match store.host {
            StoreHost::Agent => "agent",
            StoreHost::Worker => "rank 0",
        },
        endpoint: match rendezvous {
            RendezvousSpec::C10d { host, port: number, .. } => {
                Some(EndpointSummary { host: host.clone(), port: port(*number) })
            }
            RendezvousSpec::Standalone { .. } | RendezvousSpec::Static { .. } => None,
        },
    }
}

fn port(number: u16) -> LaunchValue {
    match number {
        0 => LaunchValue::AtLaunch(Pending::FreePort),
        number => LaunchValue::Known(number.to_string().into()),
    }
}

fn signals_of(spec: &LaunchSpec, handled: &HandledSignals) -> Signals {
    let (stop, forward): (Vec<Signal>, Vec<Signal>) =
        handled.iter().partition(|signal| handled.is_stop_signal(*signal as i32));
    let names = |signals: Vec<Signal>| signals.into_iter().map(Signal::as_str).collect();
    Signals {
        stop: names(stop),
        forward: names(forward),
        worker_signal: spec.options.stop_signal.map(|signal| signal.0.as_str()),
        worker_signal_to: spec.options.stop_target(spec.cli_flavor),
        grace_seconds: spec.stop.grace.as_secs_f64(),
        grace_for_seconds: GraceCause::ALL
            .into_iter()
            .filter_map(|cause| Some((cause.key(), spec.stop.grace_for.get(cause)?.as_secs_f64())))
            .collect(),
        dstate_seconds: spec.dstate_timeout.map(|limit| limit.as_secs_f64()),
    }
}

fn path_pattern(path: &Path) -> LaunchValue {
    LaunchValue::AtLaunch(Pending::Path(path.to_owned()))
}
