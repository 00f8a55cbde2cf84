//! `mpirun` and `mpiexec`, in the spellings of Open MPI and of Hydra (MPICH, Intel MPI).

use rankrun_core::facts::Facts;

use super::job::{Counts, Host, Job, NODES, hosts_of_file, hosts_of_list};
use super::options::Arity::{None as Flag, One, Two};
use super::options::Effect::{Lost, Needless, Set};
use super::options::{Grammar, ReadOptions, Row, Style, last_value};
use super::wrapped::assignment;
use crate::cli::error::CliError;
use std::path::Path;

/// More than a host file has.
const LONGEST_HOST_FILE: u64 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MpirunOption {
    Total,
    PerNode,
    Hosts,
    HostFile,
    /// `-x NAME[=VALUE]`
    Export,
    /// `-genv NAME VALUE`
    Variable,
    MapBy,
    ByNode,
    BindTo,
    Cores,
    TimeLimit,
    Stdin,
    Labels,
    LogFolder,
    Oversubscribe,
    Interface,
    Verbose,
}

const MPI_ALONE: &str = "concerns MPI alone";
const PLACEMENT: &str = "`--devices`, `--numa-binding` and `--bind-cores` place workers";
const FOLDER: &str = "change to the folder first";

const ROWS: &[Row<MpirunOption>] = &[
    ("np,n,c", One, Set(MpirunOption::Total)),
    ("npernode,N,ppn,perhost", One, Set(MpirunOption::PerNode)),
    ("H,host,hosts,hostlist", One, Set(MpirunOption::Hosts)),
    ("hostfile,machinefile,f,default-hostfile", One, Set(MpirunOption::HostFile)),
    ("x", One, Set(MpirunOption::Export)),
    ("genv,env", Two, Set(MpirunOption::Variable)),
    ("map-by", One, Set(MpirunOption::MapBy)),
    ("bynode", Flag, Set(MpirunOption::ByNode)),
    ("bind-to", One, Set(MpirunOption::BindTo)),
    ("cpu-set,cpu-list", One, Set(MpirunOption::Cores)),
    ("timeout", One, Set(MpirunOption::TimeLimit)),
    ("stdin,s", One, Set(MpirunOption::Stdin)),
    ("tag-output,l,prepend-rank", Flag, Set(MpirunOption::Labels)),
    ("output-filename", One, Set(MpirunOption::LogFolder)),
    ("oversubscribe", Flag, Set(MpirunOption::Oversubscribe)),
    ("iface", One, Set(MpirunOption::Interface)),
    ("v,verbose", Flag, Set(MpirunOption::Verbose)),
    (
        "genvall,envall,allow-run-as-root,nooversubscribe,q,quiet,enable-recovery,disable-recovery",
        Flag,
        Needless,
    ),
    ("display-map,display-allocation,display-topo,report-bindings,print-all-exitcodes", Flag, Needless),
    ("bysocket,use-hwthread-cpus", Flag, Lost(PLACEMENT)),
    ("timestamp-output", Flag, Lost("the prefix of `--tee 3` has no time")),
    ("merge-stderr-to-stdout", Flag, Lost("write `2>&1` behind the line")),
    ("genvlist,envlist,launcher,bootstrap,bootstrap-exec,launcher-exec,rmk,display", One, Needless),
    ("mca,omca,prtemca,pmca,gmca", Two, Lost(MPI_ALONE)),
    ("am,tune,prefix,launch-agent", One, Lost(MPI_ALONE)),
    (
        "rank-by,rankfile,rf,cpus-per-proc,cpus-per-rank,binding,npersocket,gpus-per-proc",
        One,
        Lost(PLACEMENT),
    ),
    ("wdir,wd", One, Lost(FOLDER)),
    (
        "genvnone,envnone",
        Flag,
        Lost("`env -i NAME=VALUE` in front of rankrun gives the workers these variables alone"),
    ),
    (
        "outfile-pattern,errfile-pattern",
        One,
        Lost("`--redirects 3 --log-dir DIR` writes a file for each worker"),
    ),
    ("rr", Flag, Lost("ranks are consecutive on each node")),
];

const GRAMMAR: Grammar<MpirunOption> =
    Grammar { launcher: "mpirun", style: Style::LongWithOneHyphen, rows: ROWS };

/// The job that the words behind `mpirun` start.
///
/// # Errors
/// An option is unknown or lacks its value, or there are several programs.
pub(super) fn read(words: &[String], facts: &Facts) -> Result<Job, CliError> {
    let ReadOptions { settings, lost, program } = GRAMMAR.read(words)?;
    if program.iter().any(|word| word == ":") {
        let message = "the line of `mpirun` starts several programs, with `:` between them";
        return Err(CliError::refused(
            message,
            "rankrun starts one: begin it with a script that tells the ranks apart",
        ));
    }
    let mut job =
        Job { launcher: GRAMMAR.launcher, notes: lost.notes().collect(), program, ..Job::default() };
    let mut counts = Counts {
        total: last_value(&settings, &MpirunOption::Total),
        per_node: last_value(&settings, &MpirunOption::PerNode),
        ..Counts::default()
    };
    for (setting, mut values) in settings {
        let value = if values.is_empty() { String::new() } else { values.swap_remove(0) };
        match setting {
            MpirunOption::Hosts => counts.hosts = hosts_of_list(&value),
            MpirunOption::HostFile => {
                let (hosts, nodes) = hosts_in(&value, &mut job, facts);
                counts.hosts = hosts;
                counts.nodes = nodes;
            }
            MpirunOption::MapBy => map_by(&value, &mut job, &mut counts),
            MpirunOption::ByNode => map_by("node", &mut job, &mut counts),
            setting => apply(setting, value, values, &mut job),
        }
    }
    if counts.total.is_none()
        && counts.per_node.is_none()
        && counts.hosts.iter().all(|host| host.slots.is_none())
    {
        job.notes.push(
            "without a number of processes Open MPI starts one per core, and rankrun one per accelerator"
                .to_owned(),
        );
    }
    job.place(counts);
    job.note_mpi();
    Ok(job)
}

/// The hosts of a file, or a name for their number where the file cannot be read.
pub(super) fn hosts_in(path: &str, job: &mut Job, facts: &Facts) -> (Vec<Host>, Option<String>) {
    if let Ok(bytes) = facts.world().read_file(Path::new(path), LONGEST_HOST_FILE) {
        return (hosts_of_file(&String::from_utf8_lossy(&bytes)), None);
    }
    job.notes.push(format!("`{path}` cannot be read here: set NODES to the number of its hosts"));
    (Vec::new(), Some(NODES.to_owned()))
}

/// `ppr:4:node`, `slot`, `node`, `numa:PE=4`
fn map_by(value: &str, job: &mut Job, counts: &mut Counts) {
    let parts: Vec<&str> = value.split(':').collect();
    match parts.as_slice() {
        ["ppr", count, "node", ..] => counts.per_node = Some((*count).to_owned()),
        ["slot" | "core", ..] => {}
        ["node", ..] => {
            counts.is_by_node = true;
            job.notes.push(format!("`--map-by {value}`: ranks are consecutive on each node"));
        }
        _ => job.notes.push(format!("`--map-by {value}`: {PLACEMENT}")),
    }
}

/// A setting that is an option of rankrun or a variable.
fn apply(setting: MpirunOption, value: String, more: Vec<String>, job: &mut Job) {
    let mut option = |words: &[&str]| job.options.extend(words.iter().map(|word| (*word).to_owned()));
    match setting {
        // The workers inherit the environment, `-x NAME` among it.
        MpirunOption::Export => job.environment.extend(assignment(&value)),
        MpirunOption::Variable => match more.into_iter().next() {
            Some(text) => job.environment.push((value, Some(text))),
            None => job.environment.extend(assignment(&value)),
        },
        MpirunOption::Cores => option(&["--bind-cores", &value]),
        MpirunOption::TimeLimit => option(&["--time-limit", &value]),
        MpirunOption::Stdin => option(&["--stdin", &value]),
        MpirunOption::Labels => option(&["--tee", "3"]),
        MpirunOption::LogFolder => option(&["--tee", "3", "--log-dir", &value]),
        MpirunOption::Oversubscribe => option(&["--oversubscribe"]),
        MpirunOption::Interface => option(&["--iface", &value]),
        MpirunOption::Verbose => option(&["-v"]),
        MpirunOption::BindTo => match value.split(':').next().unwrap_or_default() {
            "none" | "board" => {}
            "socket" | "package" => option(&["--numa-binding", "socket"]),
            "numa" => option(&["--numa-binding", "node"]),
            "l3cache" => option(&["--numa-binding", "core-complex"]),
            "core" | "hwthread" => option(&["--bind-cores", "all"]),
            _ => job.notes.push(format!("`--bind-to {value}`: {PLACEMENT}")),
        },
        MpirunOption::Total
        | MpirunOption::PerNode
        | MpirunOption::Hosts
        | MpirunOption::HostFile
        | MpirunOption::MapBy
        | MpirunOption::ByNode => {}
    }
}
