//! `srun` of Slurm.

use super::job::{ALLOCATED_NODES, Counts, Host, Job};
use super::options::Arity::{Glued, None as Flag, One};
use super::options::Effect::{Lost, Needless, Set};
use super::options::{Grammar, ReadOptions, Row, Style, last_value};
use super::wrapped::assignment;
use crate::cli::error::CliError;
use crate::cli::nodelist;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SrunOption {
    Total,
    Nodes,
    PerNode,
    NodeList,
    GpusPerTask,
    GpuBind,
    CpuBind,
    Export,
    TimeLimit,
    Labels,
    Stdin,
    Signal,
    Quiet,
    Verbose,
    SeveralPrograms,
}

const ALLOCATION: &str = "asks Slurm for the allocation: give it to `salloc` or `sbatch`";
const STEP: &str = "concerns the step of Slurm: give it to an `srun --ntasks-per-node 1` in front of rankrun";
const CONTAINER: &str = "start the container on each node, and rankrun in it";
const OUTPUT: &str =
    "redirect the output of the line, or let `--redirects 3 --log-dir DIR` write a file for each worker";
const CPUS: &str = "`--numa-binding` and `--bind-cores` bind workers to CPUs";
const FOLDER: &str = "change to the folder first";
const WHOLE_ENVIRONMENT: &str = "the workers get the whole environment";

const ROWS: &[Row<SrunOption>] = &[
    ("n,ntasks", One, Set(SrunOption::Total)),
    ("N,nodes", One, Set(SrunOption::Nodes)),
    ("ntasks-per-node,tasks-per-node", One, Set(SrunOption::PerNode)),
    ("w,nodelist", One, Set(SrunOption::NodeList)),
    ("gpus-per-task", One, Set(SrunOption::GpusPerTask)),
    ("gpu-bind", One, Set(SrunOption::GpuBind)),
    ("cpu-bind", One, Set(SrunOption::CpuBind)),
    ("export", One, Set(SrunOption::Export)),
    ("t,time", One, Set(SrunOption::TimeLimit)),
    ("l,label", Flag, Set(SrunOption::Labels)),
    ("i,input", One, Set(SrunOption::Stdin)),
    ("signal", One, Set(SrunOption::Signal)),
    ("Q,quiet", Flag, Set(SrunOption::Quiet)),
    ("v,verbose", Flag, Set(SrunOption::Verbose)),
    ("multi-prog", Flag, Set(SrunOption::SeveralPrograms)),
    ("K,kill-on-bad-exit,mpi,pty,exclusive", Glued, Needless),
    (
        "u,unbuffered,overlap,exact,whole,s,oversubscribe,O,overcommit,Z,no-allocate,E,preserve-env",
        Flag,
        Needless,
    ),
    ("J,job-name,W,wait,jobid,comment,I,immediate,d,dependency,begin,deadline,wckey", One, Needless),
    (
        "p,partition,A,account,q,qos,C,constraint,reservation,mem,mem-per-cpu,mem-per-gpu,M,clusters,licenses,L",
        One,
        Lost(ALLOCATION),
    ),
    (
        "G,gpus,gpus-per-node,gpus-per-socket,gres,c,cpus-per-task,cpus-per-gpu,x,exclude,tmp,mincpus",
        One,
        Lost(ALLOCATION),
    ),
    (
        "priority,mail-type,mail-user,switches,threads-per-core,cores-per-socket,sockets-per-node,S,core-spec",
        One,
        Lost(ALLOCATION),
    ),
    (
        "ntasks-per-core,ntasks-per-gpu,ntasks-per-socket,F,nodefile,r,relative,het-group,network",
        One,
        Lost(STEP),
    ),
    (
        "tres-bind,tres-per-task,task-prolog,task-epilog,prolog,epilog,propagate,profile,open-mode,bcast",
        One,
        Lost(STEP),
    ),
    ("nice,k,no-kill,acctg-freq,cpu-freq,power,X,disable-status,slurmd-debug", Glued, Lost(STEP)),
    ("o,output,e,error", One, Lost(OUTPUT)),
    ("D,chdir", One, Lost(FOLDER)),
    ("m,distribution", One, Lost("ranks are consecutive on each node")),
    ("hint,mem-bind", One, Lost(CPUS)),
    ("export-file", One, Lost(WHOLE_ENVIRONMENT)),
    (
        "container-image,container-mounts,container-name,container-workdir,container-env,container,container-id",
        One,
        Lost(CONTAINER),
    ),
    (
        "container-mount-home,no-container-mount-home,container-remap-root,no-container-remap-root",
        Flag,
        Lost(CONTAINER),
    ),
    (
        "container-entrypoint,no-container-entrypoint,container-writable,container-readonly,container-save",
        Glued,
        Lost(CONTAINER),
    ),
];

const GRAMMAR: Grammar<SrunOption> = Grammar { launcher: "srun", style: Style::Getopt, rows: ROWS };

/// The job that the words behind `srun` start.
///
/// # Errors
/// An option is unknown or lacks its value, or there are several programs.
pub(super) fn read(words: &[String]) -> Result<Job, CliError> {
    let ReadOptions { settings, lost, program } = GRAMMAR.read(words)?;
    let has_several = settings.iter().any(|(setting, _)| *setting == SrunOption::SeveralPrograms);
    if has_several || program.iter().any(|word| word == ":") {
        let message = "the line of `srun` starts several programs";
        return Err(CliError::refused(
            message,
            "rankrun starts one: begin it with a script that tells the ranks apart",
        ));
    }
    let mut job =
        Job { launcher: GRAMMAR.launcher, notes: lost.notes().collect(), program, ..Job::default() };
    let value = |setting| last_value(&settings, &setting);
    let mut counts =
        Counts { total: value(SrunOption::Total), per_node: value(SrunOption::PerNode), ..Counts::default() };
    set_nodes(value(SrunOption::Nodes), value(SrunOption::NodeList), &mut counts, &mut job);
    let has_limit =
        last_value(&settings, &SrunOption::TimeLimit).is_some_and(|limit| time_limit(&limit).is_some());
    for (setting, values) in settings {
        apply(setting, values.first().map_or("", String::as_str), has_limit, &mut job);
    }
    job.place(counts);
    job.note_mpi();
    Ok(job)
}

/// How many nodes there are, and their names.
fn set_nodes(nodes: Option<String>, list: Option<String>, counts: &mut Counts, job: &mut Job) {
    let number = |text: &Option<String>| text.as_ref()?.parse::<usize>().ok();
    let is_fixed = counts.total.is_some();
    counts.nodes = nodes.map(|nodes| match nodes.split_once('-').filter(|_| !nodes.contains('$')) {
        // A job that grows and shrinks has no fixed number of workers.
        Some((_, most)) if is_fixed => {
            job.notes.push(format!("`-N {nodes}` beside a number of tasks: this line takes {most} nodes"));
            most.to_owned()
        }
        Some((least, most)) => format!("{least}:{most}"),
        None => nodes,
    });
    // Beside both, Slurm takes the number for a node as a maximum.
    if number(&counts.total).and(number(&counts.nodes)).is_some() {
        counts.per_node = None;
    }
    if counts.total.is_none() && counts.per_node.is_none() {
        // `-N 2` alone starts a task on each node.
        counts.per_node = counts.nodes.as_ref().map(|_| "1".to_owned());
        if counts.per_node.is_none() {
            job.notes.push("the number of tasks is the allocation's: give it as `--nproc-per-node`, if it is not one per accelerator".to_owned());
        }
    }
    let mut names = list.as_deref().and_then(nodelist::expand).unwrap_or_default();
    if let Some(count) = number(&counts.nodes) {
        names.truncate(count);
        // The list may name a part of the nodes.
        if names.len() < count {
            names.clear();
        }
    }
    counts.hosts = names.into_iter().map(|name| Host { name, slots: None }).collect();
    let is_known = counts.nodes.is_some()
        || !counts.hosts.is_empty()
        || number(&counts.total).and(number(&counts.per_node)).is_some();
    if !is_known && (list.is_some() || counts.per_node.is_some()) {
        counts.nodes = Some(ALLOCATED_NODES.to_owned());
        job.notes.push(
            "the number of nodes is the allocation's: Slurm sets SLURM_NNODES in it, elsewhere set it yourself"
                .to_owned(),
        );
    }
}

/// A setting that is an option of rankrun or a variable.
fn apply(setting: SrunOption, value: &str, has_limit: bool, job: &mut Job) {
    let mut option = |words: &[&str]| job.options.extend(words.iter().map(|word| (*word).to_owned()));
    match setting {
        SrunOption::GpusPerTask if value == "1" => option(&["--device-visibility", "own"]),
        SrunOption::GpuBind if value == "single:1" => option(&["--device-visibility", "own"]),
        SrunOption::GpuBind if value == "none" => {}
        SrunOption::GpusPerTask => job.notes.push(format!("`--gpus-per-task {value}`: {ALLOCATION}")),
        SrunOption::GpuBind => {
            job.notes.push(format!(
                "`--gpu-bind={value}`: `--devices` gives the accelerators in the order of the ranks"
            ));
        }
        SrunOption::CpuBind if ["none", "no"].contains(&value.trim_start_matches("verbose,")) => {}
        SrunOption::CpuBind => job.notes.push(format!("`--cpu-bind={value}`: {CPUS}")),
        SrunOption::Export => export(value, job),
        SrunOption::TimeLimit => {
            if let Some(limit) = time_limit(value) {
                option(&["--time-limit", &limit]);
            }
        }
        SrunOption::Labels => option(&["--tee", "3"]),
        SrunOption::Stdin
            if value == "none" || value == "all" || value.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            option(&["--stdin", value]);
        }
        SrunOption::Stdin => job.notes.push(format!("`--input {value}`: write `<{value}` behind the line")),
        SrunOption::Signal if has_limit => {
            option(&["--warn-signal", value.rsplit(':').next().unwrap_or(value)])
        }
        SrunOption::Signal => {
            job.notes.push(format!("`--signal={value}`: `--warn-signal` needs a `--time-limit`"))
        }
        SrunOption::Quiet => option(&["--quiet"]),
        SrunOption::Verbose => option(&["-v"]),
        SrunOption::Total
        | SrunOption::Nodes
        | SrunOption::PerNode
        | SrunOption::NodeList
        | SrunOption::SeveralPrograms => {}
    }
}

/// `ALL,NAME=VALUE`
fn export(value: &str, job: &mut Job) {
    let items: Vec<&str> = value.split(',').collect();
    job.environment.extend(items.iter().filter_map(|item| assignment(item)));
    if !items.contains(&"ALL") {
        job.notes.push(format!("`--export={value}`: {WHOLE_ENVIRONMENT}"));
    }
}

/// A time of Slurm; a bare number is minutes there. Nothing for no limit.
fn time_limit(text: &str) -> Option<String> {
    match text.to_ascii_lowercase().as_str() {
        "0" | "unlimited" | "infinite" => None,
        minutes if minutes.bytes().all(|byte| byte.is_ascii_digit()) => Some(format!("{minutes}m")),
        _ => Some(text.to_owned()),
    }
}
