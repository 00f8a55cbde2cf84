//! `horovodrun`.

use rankrun_core::facts::Facts;

use super::job::{Counts, Job, NODES, ProcessCount, SeveralNodes, hosts_of_list};
use super::mpirun::hosts_in;
use super::options::Arity::{None as Flag, One, Two};
use super::options::Effect::{Lost, Needless, Set};
use super::options::{Grammar, ReadOptions, Row, Style, last_value};
use crate::cli::error::CliError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HorovodrunOption {
    Total,
    Least,
    Most,
    Slots,
    Hosts,
    HostFile,
    Script,
    Restarts,
    StartTimeout,
    Interface,
    LogFolder,
    Verbose,
}

const HOROVOD_ALONE: &str = "concerns Horovod alone";

const ROWS: &[Row<HorovodrunOption>] = &[
    ("np,num-proc", One, Set(HorovodrunOption::Total)),
    ("min-np,min-num-proc", One, Set(HorovodrunOption::Least)),
    ("max-np,max-num-proc", One, Set(HorovodrunOption::Most)),
    ("slots-per-host,slots", One, Set(HorovodrunOption::Slots)),
    ("H,hosts", One, Set(HorovodrunOption::Hosts)),
    ("hostfile,host-file", One, Set(HorovodrunOption::HostFile)),
    ("host-discovery-script", One, Set(HorovodrunOption::Script)),
    ("reset-limit", One, Set(HorovodrunOption::Restarts)),
    ("start-timeout", One, Set(HorovodrunOption::StartTimeout)),
    ("network-interfaces,network-interface,nics", One, Set(HorovodrunOption::Interface)),
    ("output-filename", One, Set(HorovodrunOption::LogFolder)),
    ("verbose", Flag, Set(HorovodrunOption::Verbose)),
    (
        "gloo,use-gloo,mpi,use-mpi,jsrun,use-jsrun,disable-cache,tcp,prefix-output-with-timestamp",
        Flag,
        Needless,
    ),
    ("p,ssh-port,i,ssh-identity-file", One, Needless),
    (
        "config-file,fusion-threshold-mb,cycle-time-ms,cache-capacity,timeline-filename,log-level",
        One,
        Lost(HOROVOD_ALONE),
    ),
    (
        "autotune-log-file,stall-check-warning-time-seconds,stall-check-shutdown-time-seconds",
        One,
        Lost(HOROVOD_ALONE),
    ),
    (
        "mpi-args,binding-args,gloo-timeout-seconds,elastic-timeout,num-nccl-streams,cpu-operations",
        One,
        Lost(HOROVOD_ALONE),
    ),
    ("blacklist-cooldown-range,cooldown-range", Two, Lost(HOROVOD_ALONE)),
    (
        "autotune,no-autotune,hierarchical-allreduce,hierarchical-allgather,timeline-mark-cycles",
        Flag,
        Lost(HOROVOD_ALONE),
    ),
    (
        "no-stall-check,mpi-threads-disable,no-mpi-threads-disable,log-hide-timestamp",
        Flag,
        Lost(HOROVOD_ALONE),
    ),
];

const GRAMMAR: Grammar<HorovodrunOption> =
    Grammar { launcher: "horovodrun", style: Style::LongWithOneHyphen, rows: ROWS };

/// The job that the words behind `horovodrun` start.
///
/// # Errors
/// An option is unknown or lacks its value.
pub(super) fn read(words: &[String], facts: &Facts) -> Result<Job, CliError> {
    let ReadOptions { settings, lost, program } = GRAMMAR.read(words)?;
    let mut job =
        Job { launcher: GRAMMAR.launcher, notes: lost.notes().collect(), program, ..Job::default() };
    let value = |setting| last_value(&settings, &setting);
    let mut counts = Counts { total: value(HorovodrunOption::Total), ..Counts::default() };
    if let Some(list) = value(HorovodrunOption::Hosts) {
        counts.hosts = hosts_of_list(&list);
    } else if let Some(path) = value(HorovodrunOption::HostFile) {
        (counts.hosts, counts.nodes) = hosts_in(&path, &mut job, facts);
    }
    let has_least = value(HorovodrunOption::Least).or_else(|| value(HorovodrunOption::Script)).is_some();
    if has_least {
        place_elastic(
            [
                HorovodrunOption::Total,
                HorovodrunOption::Least,
                HorovodrunOption::Most,
                HorovodrunOption::Slots,
            ]
            .map(value),
            &mut job,
        );
    } else {
        job.place(counts);
    }
    for (setting, values) in &settings {
        let value = values.first().map_or("", String::as_str);
        let words: &[&str] = match setting {
            HorovodrunOption::Restarts => &["--max-restarts", value],
            HorovodrunOption::StartTimeout if job.nodes.is_some() => &["--join-timeout", value],
            HorovodrunOption::Interface => &["--iface", value.split(',').next().unwrap_or(value)],
            HorovodrunOption::LogFolder => &["--tee", "3", "--log-dir", value],
            HorovodrunOption::Verbose => &["-v"],
            _ => &[],
        };
        job.options.extend(words.iter().map(|word| (*word).to_owned()));
        if *setting == HorovodrunOption::Script {
            job.notes.push(format!(
                "`--host-discovery-script {value}`: start rankrun on each node that shall take part"
            ));
        }
    }
    job.note_mpi();
    Ok(job)
}

/// A job that grows and shrinks by whole nodes.
fn place_elastic([total, least, most, slots]: [Option<String>; 4], job: &mut Job) {
    let number = |text: &Option<String>| text.as_ref().and_then(|text| text.parse::<u32>().ok());
    let nodes = number(&slots).filter(|slots| *slots > 0).and_then(|slots| {
        let least = number(&least).or_else(|| number(&total))?.div_ceil(slots);
        let most = number(&most).map_or(least, |most| (most / slots).max(least));
        Some(format!("{least}:{most}"))
    });
    job.workers = slots.map_or(ProcessCount::Unsaid, ProcessCount::PerNode);
    let count = nodes.unwrap_or_else(|| {
        let note = "without `--slots-per-host` the number of nodes is not known: set NODES to it, as in 1:4";
        job.notes.push(note.to_owned());
        NODES.to_owned()
    });
    job.nodes = Some(SeveralNodes { count, hosts: Vec::new() });
}
