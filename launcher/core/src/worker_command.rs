//! Builds the exact argv and environment of one worker from its placement and the launch specification. Pure.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rankrun_contract::env::{self, NESTING, RankrunEnv, Role, WorkerEnv};
use rankrun_contract::rank::{Generation, JobId, LocalRank, NodeCount, Rank, RestartCount};

use crate::device::Visibility;
use crate::hang::ras::RAS_ADDR;
use crate::hang::trainer_access::{TrainerAccess, variables_of_outer_launcher};
use crate::placement::Placement;
use crate::rendezvous::Round;
use crate::spec::{CliFlavor, Entrypoint, LaunchSpec};
use crate::template;

/// A program with arguments and environment, ready for `execve`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerCommand {
    /// The path of the file to execute.
    pub path: CString,
    /// The arguments; the first one is the program's name.
    pub argv: Vec<CString>,
    /// The environment as `NAME=value`, one string per variable.
    pub envp: Vec<CString>,
    /// The CPUs that it is bound to; by none it has the launcher's.
    pub cpus: Option<Vec<u32>>,
    /// It names the process that starts it as its tracer (`PR_SET_PTRACER`), where Yama asks for that.
    pub names_tracer: bool,
}

/// An argument or variable holds a NUL byte, which no program can be given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` holds a NUL byte")]
pub struct NulByte {
    /// The text, with invalid UTF-8 replaced.
    pub text: String,
}

/// The parts that all workers of one generation share.
#[derive(Debug, Clone)]
pub struct GenerationContext {
    /// The generation of the worker group.
    pub generation: Generation,
    /// The number of restarts used so far.
    pub restart_count: RestartCount,
    /// The rendezvous that it lives in.
    pub round: Round,
    /// The job id that marks all processes of the job.
    pub job: JobId,
}

/// What the launcher has made for one worker.
#[derive(Debug, Clone, Copy, Default)]
pub struct WorkerFiles<'a> {
    /// Where the worker writes its error.
    pub error_file: Option<&'a Path>,
    /// The hook that its Python runs first.
    pub hook: Option<&'a WorkerHook>,
    /// The FIFO for PyTorch's file timers.
    pub timer_file: Option<&'a Path>,
    /// By which it shows its progress.
    pub progress: Option<&'a ProgressFiles>,
    /// The variables of PyTorch's flight recorder ([`recorder_variables`](crate::hang::recorder_dumps::recorder_variables)).
    pub recorder: &'a [(&'static str, OsString)],
}

/// The files by which one worker shows its progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgressFiles {
    /// The FIFO for its heartbeats.
    pub heartbeat: PathBuf,
    /// The socket on which its flight recorder answers, if it is asked.
    pub flight_recorder: Option<PathBuf>,
    /// Its progress page, if it is not Python.
    pub page: Option<PathBuf>,
    /// The port on which NCCL in the workers of this node answers ([`RAS_ADDR`]), if it is asked.
    pub ras_port: Option<String>,
    /// Of rank 0: how its Trainer reaches the launcher, if it is to.
    pub trainer: Option<TrainerAccess>,
}

/// The variables of the hook of one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerHook {
    /// `PYTHONPATH`: the folder of the hook before the user's.
    pub python_path: OsString,
    /// The value of [`env::STACKS`].
    pub stacks: String,
}

/// The program of `--run-path`: runs the script as `__main__` and records its errors if torch is installed, as
/// torchrun's own children do.
const RUN_PATH: &str = "\
import runpy, sys
del sys.argv[0]
def run_script_path():
    runpy.run_path(sys.argv[0], run_name='__main__')
try:
    from torch.distributed.elastic.multiprocessing.errors import record
except ImportError:
    record = lambda function: function
record(run_script_path)()
";

/// Where Python looks for modules first.
pub const PYTHON_PATH: &str = "PYTHONPATH";

/// The variable by which programs find the FIFO of PyTorch's file timers.
pub const TIMER_FILE: &str = "TORCHELASTIC_TIMER_FILE";

/// Options that name workers or the report of this launch, or choose its devices and cores. A launcher that a worker starts
/// has its own, and inherits the chosen devices.
const PER_LAUNCH_VARIABLES: [&str; 7] = [
    "RANKRUN_LEAVE_OUT",
    "RANKRUN_STDIN",
    "RANKRUN_WRAP",
    "RANKRUN_DEVICES",
    "RANKRUN_DEVICE_ORDER",
    "RANKRUN_BIND_CORES",
    "RANKRUN_REPORT",
];

/// The variables that a worker which is not told of its job must not find.
#[must_use]
pub fn hidden_variables(spec: &LaunchSpec) -> &'static [&'static str] {
    if spec.is_distributed() { &[] } else { &env::DISTRIBUTED_VARIABLES }
}

/// The worker's program, arguments and environment; `environment` is the launcher's own.
///
/// # Errors
/// A text has a NUL byte, so no program can get it.
pub fn worker_command(
    spec: &LaunchSpec,
    context: &GenerationContext,
    placement: &Placement,
    environment: &[(OsString, OsString)],
    files: WorkerFiles<'_>,
) -> Result<WorkerCommand, NulByte> {
    let (path, argv) = wrapped_command_line(spec, placement);
    let vars = worker_environment(spec, context, placement, files);
    let ours: Vec<&str> = vars
        .iter()
        .map(|(name, _)| *name)
        .chain(placement.device.variables.iter().map(|(name, _)| *name))
        .chain(PER_LAUNCH_VARIABLES)
        .chain(hidden_variables(spec).iter().copied())
        // These of an outer launcher describe the outer job, or are for one process alone.
        .chain([
            env::DEVICE,
            env::ROUND,
            env::STACKS,
            env::HEARTBEAT,
            env::FLIGHT_RECORDER,
            env::PROGRESS_PAGE,
        ])
        .chain(variables_of_outer_launcher(environment).iter().copied())
        .collect();
    let is_ours = |name: &OsStr| ours.iter().any(|ours| OsStr::new(ours) == name);
    let kept = environment.iter().filter(|(name, _)| !is_ours(name));
    let envp = kept
        .map(|(name, value)| (name.as_os_str(), value.as_os_str()))
        .chain(vars.iter().map(|(name, value)| (OsStr::new(name), value.as_os_str())))
        .map(|(name, value)| c_string([name.as_bytes(), b"=", value.as_bytes()].concat()))
        .collect::<Result<_, _>>()?;
    let argv = argv.into_iter().map(|argument| c_string(argument.into_vec())).collect::<Result<_, _>>()?;
    let cpus = placement.device.cpus.clone();
    let names_tracer = spec.options.allow_ptrace;
    Ok(WorkerCommand { path: c_string(path.into_vec())?, argv, envp, cpus, names_tracer })
}

fn c_string(bytes: Vec<u8>) -> Result<CString, NulByte> {
    CString::new(bytes)
        .map_err(|error| NulByte { text: String::from_utf8_lossy(&error.into_vec()).into_owned() })
}

/// The first wrapper of the rank is the outermost.
fn wrapped_command_line(spec: &LaunchSpec, placement: &Placement) -> (OsString, Vec<OsString>) {
    let Placement { rank, .. } = *placement;
    let local_rank = local_rank(spec, placement);
    spec.wrappers_of(rank).rev().fold(worker_command_line(spec, placement), |(path, argv), wrapper| {
        let words = wrapper.argv(rank, local_rank).into_iter();
        let argv = words.chain([path]).chain(argv.into_iter().skip(1)).collect();
        (wrapper.path.clone().into_os_string(), argv)
    })
}

/// The index of the worker on its machine.
fn local_rank(spec: &LaunchSpec, placement: &Placement) -> LocalRank {
    spec.node_task.map_or(placement.local_rank, |task| task.local_rank)
}

fn worker_command_line(spec: &LaunchSpec, placement: &Placement) -> (OsString, Vec<OsString>) {
    let unbuffered = OsString::from("-u");
    let ranks = (local_rank(spec, placement), placement.rank);
    let expanded = |text: &OsStr| expand_macros(text, spec.cli_flavor, ranks);
    let (path, mut argv) = match &spec.entrypoint {
        Entrypoint::Script { python, script } => {
            let python = python.clone().into_os_string();
            (python.clone(), vec![python, unbuffered, expanded(script)])
        }
        Entrypoint::Module { python, module } => {
            let python = python.clone().into_os_string();
            (python.clone(), vec![python, unbuffered, OsString::from("-m"), expanded(module)])
        }
        Entrypoint::RunPath { python, script } => {
            let python = python.clone().into_os_string();
            let run: [OsString; 2] = ["-c".into(), RUN_PATH.into()];
            (python.clone(), [python, unbuffered].into_iter().chain(run).chain([expanded(script)]).collect())
        }
        Entrypoint::Program { path, name } => (path.clone().into_os_string(), vec![name.clone()]),
    };
    argv.extend(spec.args.iter().map(|argument| expanded(argument)));
    (path, argv)
}

/// Under our own name `${local_rank}` and `${rank}` → the ranks, and every other dollar stays. As torchrun, Python's
/// `string.Template` decides: `$local_rank` too, and `$$` → `$` (contract 1.10).
fn expand_macros(text: &OsStr, flavor: CliFlavor, (local_rank, rank): (LocalRank, Rank)) -> OsString {
    let bytes = text.as_bytes();
    OsString::from_vec(match flavor {
        CliFlavor::Rankrun => template::replace_braced(bytes, |name| match name {
            "local_rank" => Some(local_rank.to_string()),
            "rank" => Some(rank.to_string()),
            _ => None,
        }),
        CliFlavor::Torchrun => {
            let value = |name: &str| (name == "local_rank").then(|| local_rank.to_string());
            template::substitute(bytes, value)
        }
    })
}

/// The variables that the launcher sets or changes for this worker, in a fixed order.
#[must_use]
pub fn worker_environment(
    spec: &LaunchSpec,
    context: &GenerationContext,
    placement: &Placement,
    files: WorkerFiles<'_>,
) -> Vec<(&'static str, OsString)> {
    let round = &context.round;
    let has_rounds = spec.rendezvous.nodes().max > NodeCount::ONE;
    let env = WorkerEnv {
        rank: placement.rank,
        local_rank: match spec.devices.visibility {
            Visibility::Whole => local_rank(spec, placement),
            Visibility::Own => LocalRank(0),
        },
        world_size: round.world_size,
        local_world_size: spec.node_task.map_or(spec.workers, |task| task.local_world_size),
        node_rank: spec.node_task.map_or(round.node_rank, |task| task.node_rank),
        node_count: spec.node_task.map_or(round.nodes, |task| task.nodes),
        role: Role { name: spec.role.clone(), rank: placement.role_rank, world_size: round.role_world_size },
        master: round.master.clone(),
        restart_count: context.restart_count,
        max_restarts: spec.max_restarts,
        run_id: spec.rendezvous.run_id().clone(),
        error_file: files.error_file.map(Path::to_path_buf),
        signals_to_handle: spec.signals.text.clone(),
        rankrun: Some(RankrunEnv {
            job: context.job.clone(),
            generation: context.generation,
            round: has_rounds.then_some(round.number),
            device: placement.device.contract_device(),
        }),
    };
    let mut vars = env.to_vars();
    vars.retain(|(name, _)| !hidden_variables(spec).contains(name));
    vars.extend(files.timer_file.map(|path| (TIMER_FILE, path.into())));
    if let Some(progress) = files.progress {
        vars.push((env::HEARTBEAT, progress.heartbeat.clone().into()));
        vars.extend(progress.flight_recorder.iter().map(|path| (env::FLIGHT_RECORDER, path.into())));
        vars.extend(progress.page.iter().map(|path| (env::PROGRESS_PAGE, path.into())));
        vars.extend(progress.ras_port.iter().map(|port| (RAS_ADDR, format!("127.0.0.1:{port}").into())));
        vars.extend(progress.trainer.iter().flat_map(TrainerAccess::variables));
    }
    vars.extend(files.recorder.iter().cloned());
    vars.push((NESTING, spec.nesting.clone().into()));
    if spec.defaults.nccl_async_error_handling {
        vars.push(("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1".into()));
    }
    if let Some(threads) = spec.devices.omp_threads {
        vars.push(("OMP_NUM_THREADS", threads.to_string().into()));
    }
    vars.extend(spec.defaults.interfaces.iter().map(|(name, interface)| (*name, interface.into())));
    if let Some(interface) = &round.interface {
        vars.extend(spec.defaults.connection_interfaces.iter().map(|name| (*name, interface.into())));
    }
    vars.extend(spec.defaults.nccl_library.iter().map(|path| (env::NCCL_LIBRARY, path.into())));
    for (name, value) in &placement.device.variables {
        if let Some(value) = value {
            vars.push((name, value.clone()));
        }
    }
    if let Some(hook) = files.hook {
        vars.push((PYTHON_PATH, hook.python_path.clone()));
        vars.push((env::STACKS, hook.stacks.clone().into()));
    }
    vars
}

/// `NAME=value` at its first `=`; a name may begin with one.
#[must_use]
pub fn split_entry(entry: &[u8]) -> (&OsStr, &OsStr) {
    let at = entry.iter().skip(1).position(|byte| *byte == b'=').map_or(entry.len(), |at| at + 1);
    let value = entry.get(at + 1..).unwrap_or_default();
    (OsStr::from_bytes(&entry[..at]), OsStr::from_bytes(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankrun_contract::rank::{LocalWorldSize, NodeRank, RunId};

    use crate::device::WorkerDevice;
    use crate::spec::RendezvousSpec;
    use crate::spec::fake::example;
    use crate::spec::options::Distributed;
    use crate::spec::rendezvous::RoundTimes;
    use crate::spec::wrap::Wrapper;

    #[test]
    fn macros_expand_by_cli_flavor() {
        for (text, ours, torchs) in [
            ("a${local_rank}b", "a7b", "a7b"),
            ("${rank}", "15", "${rank}"),
            ("$local_rank $local_ranks", "$local_rank $local_ranks", "7 $local_ranks"),
            ("$$", "$$", "$"),
            ("$${local_rank}", "$7", "${local_rank}"),
            ("${local_rank", "${local_rank", "${local_rank"),
            ("^a$ ${HOME} ${}", "^a$ ${HOME} ${}", "^a$ ${HOME} ${}"),
        ] {
            let ranks = (LocalRank(7), Rank(15));
            let expanded = |cli_flavor| expand_macros(OsStr::new(text), cli_flavor, ranks);
            assert_eq!(expanded(CliFlavor::Rankrun), ours, "{text}");
            assert_eq!(expanded(CliFlavor::Torchrun), torchs, "{text}");
        }
    }

    #[test]
    fn wrapped_worker_runs_wrapper_with_program_as_its_arguments() {
        let wrapper = |command: &str, path: &str| Wrapper {
            command: command.parse().unwrap(),
            path: path.into(),
            host: "here".to_owned(),
        };
        let wrappers = vec![
            wrapper("all:numactl -C %l", "/usr/bin/numactl"),
            wrapper("1-2:nsys -o r%r@%h", "/opt/nsys"),
        ];
        let spec = LaunchSpec { wrappers, args: vec!["${rank}".into()], ..example() };
        let line = |rank| {
            let local_rank = LocalRank(rank - 1);
            let device = WorkerDevice::cpu(local_rank);
            let placement = Placement { rank: Rank(rank), role_rank: Rank(rank), local_rank, device };
            let (path, argv) = wrapped_command_line(&spec, &placement);
            let argv: Vec<String> = argv.into_iter().map(|word| word.into_string().unwrap()).collect();
            (path.into_string().unwrap(), argv.join(" "))
        };
        let expected = |argv: &str| ("/usr/bin/numactl".to_owned(), argv.to_owned());
        assert_eq!(line(2), expected("numactl -C 1 /opt/nsys -o r2@here /bin/true 2"));
        assert_eq!(line(3), expected("numactl -C 2 /bin/true 3"));
    }

    #[test]
    fn only_single_worker_lacks_variables_of_its_job() {
        let mut spec = LaunchSpec { workers: LocalWorldSize::ONE, ..example() };
        for (distributed, workers, hides) in
            [(Distributed::Always, 1, false), (Distributed::Auto, 1, true), (Distributed::Auto, 2, false)]
        {
            spec.options.distributed = distributed;
            spec.workers = LocalWorldSize::new(workers).unwrap();
            assert_eq!(!hidden_variables(&spec).is_empty(), hides, "{distributed:?} {workers}");
        }
        spec.workers = LocalWorldSize::ONE;
        spec.rendezvous = RendezvousSpec::Static {
            run_id: RunId("example".to_owned()),
            addr: "th1".to_owned(),
            port: 29_400,
            named_by: None,
            local_addr: None,
            nodes: NodeCount::new(2).unwrap(),
            node_rank: NodeRank(0),
            times: RoundTimes::default(),
        };
        assert_eq!(hidden_variables(&spec), [""; 0]);
    }

    #[test]
    fn environment_entry_splits_at_first_equals_sign() {
        for (entry, parts) in
            [("A=1=2", ("A", "1=2")), ("A=", ("A", "")), ("A", ("A", "")), ("=C:=x", ("=C:", "x"))]
        {
            assert_eq!(split_entry(entry.as_bytes()), (OsStr::new(parts.0), OsStr::new(parts.1)));
        }
    }
}
