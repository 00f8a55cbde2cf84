//! `torchx run … dist.ddp`, and its siblings that start torchrun.

use super::job::{Job, ProcessCount, SeveralNodes};
use super::options::Arity::{None as Flag, One};
use super::options::Effect::{Lost, Needless, Set};
use super::options::{Grammar, ReadOptions, Row, Style, last_value};
use super::wrapped::assignment;
use crate::cli::error::CliError;

/// The components that start torchrun.
const COMPONENTS: [&str; 3] = ["dist.ddp", "dist.torchrun", "dist.spmd"];
/// `-j` of a component without one.
const DEFAULT_SIZE: &str = "1x2";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TorchxOption {
    Scheduler,
    Size,
    Script,
    Module,
    Variables,
    Restarts,
    Backend,
    Conf,
    Streams,
}

const SCHEDULER: &str = "concerns the scheduler, which starts rankrun as any program";

const TORCHX_ALONE: &str = "concerns torchx alone";

const RUN: Grammar<TorchxOption> = Grammar {
    launcher: "torchx run",
    style: Style::LongWithOneHyphen,
    rows: &[
        ("s,scheduler", One, Set(TorchxOption::Scheduler)),
        ("cfg,scheduler-args,workspace,parent-run-id", One, Lost(TORCHX_ALONE)),
        ("dryrun,wait,log,tee-logs,stdin", Flag, Needless),
    ],
};

const ROWS: &[Row<TorchxOption>] = &[
    ("j", One, Set(TorchxOption::Size)),
    ("script", One, Set(TorchxOption::Script)),
    ("m", One, Set(TorchxOption::Module)),
    ("env", One, Set(TorchxOption::Variables)),
    ("max-retries", One, Set(TorchxOption::Restarts)),
    ("rdzv-backend", One, Set(TorchxOption::Backend)),
    ("rdzv-conf", One, Set(TorchxOption::Conf)),
    ("tee", One, Set(TorchxOption::Streams)),
    ("name,debug,rdzv-port", One, Needless),
    ("image,h,cpu,gpu,memMB,mounts,metadata,role", One, Lost(SCHEDULER)),
];

/// The job that the words behind `torchx` start.
///
/// # Errors
/// The words are not `run` with a component for torchrun, or an option is unknown.
pub(super) fn read(words: &[String]) -> Result<Job, CliError> {
    let behind = words.split_first().filter(|(verb, _)| *verb == "run").map(|(_, behind)| behind);
    let behind = behind.ok_or_else(|| {
        CliError::refused("only `torchx run` starts workers", "run other commands of `torchx` as they are")
    })?;
    let run = RUN.read(behind)?;
    let (component, words) =
        run.program.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
    if !COMPONENTS.contains(&component) {
        let message = format!("the component `{component}` of torchx starts no torchrun");
        return Err(CliError::refused(
            message,
            "`rankrun convert` knows dist.ddp, dist.torchrun and dist.spmd",
        ));
    }
    let grammar = Grammar { launcher: "torchx", style: Style::LongWithOneHyphen, rows: ROWS };
    let ReadOptions { settings, mut lost, program: arguments } = grammar.read(words)?;
    if let Some(scheduler) = last_value(&run.settings, &TorchxOption::Scheduler)
        && !scheduler.starts_with("local")
    {
        lost.push(SCHEDULER, &format!("--scheduler {scheduler}"));
    }
    let notes = run.lost.notes().chain(lost.notes()).collect();
    let mut job = Job { launcher: "torchx", notes, ..Job::default() };
    let value = |setting| last_value(&settings, &setting);
    place(&value(TorchxOption::Size).unwrap_or_else(|| DEFAULT_SIZE.to_owned()), &mut job);
    let variables = value(TorchxOption::Variables).unwrap_or_default();
    job.environment.extend(variables.split(',').filter_map(assignment));
    for (option, setting) in [
        ("--max-restarts", TorchxOption::Restarts),
        ("--rdzv-conf", TorchxOption::Conf),
        ("--tee", TorchxOption::Streams),
    ] {
        job.options.extend(value(setting).into_iter().flat_map(|value| [option.to_owned(), value]));
    }
    if let Some(backend) = value(TorchxOption::Backend).filter(|backend| backend != "c10d") {
        job.notes.push(format!("`--rdzv_backend {backend}`: the nodes meet by c10d"));
    }
    job.program = match (value(TorchxOption::Script), value(TorchxOption::Module)) {
        (Some(script), _) => vec!["python".to_owned(), script],
        (None, Some(module)) => ["python", "-m", &module].map(str::to_owned).to_vec(),
        (None, None) => {
            let hint = "name it, as in `--script train.py` or `-m package.train`";
            return Err(CliError::refused("the line of `torchx` has no program to start", hint));
        }
    };
    job.program.extend(arguments);
    Ok(job)
}

/// `2x8`, `1:2x8`, or `8` on one node.
fn place(size: &str, job: &mut Job) {
    let (nodes, workers) = size.split_once('x').unwrap_or(("1", size));
    job.workers = ProcessCount::PerNode(workers.to_owned());
    job.nodes = (nodes != "1").then(|| SeveralNodes { count: nodes.to_owned(), hosts: Vec::new() });
}
