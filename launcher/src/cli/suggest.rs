//! What a word that nothing here knows may have meant: a misspelt option or variable, a word of another launcher, a
//! subcommand. Pure.

use rankrun_contract::env::{
    BACKEND, DEVICE, FLIGHT_RECORDER, GENERATION, HEARTBEAT, JOB, KEEP, NCCL_LIBRARY, NESTING, PROGRESS_PAGE,
    ROUND, STACKS,
};
use strsim::osa_distance;

use super::help;
use super::nesting::is_inside_worker;
use super::option::{LaunchOption, find_option, long_names, options};
use super::other_launcher::HANDED_OVER;
use super::subcommand::{self, options_of};
use clap::{Arg, Command};
use rankrun_core::facts::Facts;
use rankrun_core::notice::Notice;
use rankrun_core::spec::CliFlavor;
use rankrun_tools::shim::SWITCH;

/// With more candidates than these the suggestion is left out.
const MOST_ANSWERS: usize = 6;
/// Shorter beginnings fit too much.
const SHORTEST_BEGINNING: usize = 3;
const OUR_PREFIX: &str = "RANKRUN_";
const TORCH_PREFIX: &str = "PET_";
/// Variables that users set and no option has.
const FOR_USERS: [&str; 4] = [BACKEND, KEEP, NCCL_LIBRARY, SWITCH];
/// Variables that the launcher sets, for workers and for itself.
const FOR_WORKERS: [&str; 10] =
    [DEVICE, FLIGHT_RECORDER, GENERATION, HANDED_OVER, HEARTBEAT, JOB, NESTING, PROGRESS_PAGE, ROUND, STACKS];
/// Variables of this project's own tests and benches.
const FOR_TESTS: [&str; 5] =
    ["RANKRUN_BENCH_", "RANKRUN_E2E_", "RANKRUN_SEED", "RANKRUN_SOAK", "RANKRUN_TEST_"];

/// Options of accelerate, deepspeed, mpirun, srun and their like, without dashes and with hyphens, and our word for
/// each.
const FOREIGN: &[(&[&str], &str)] = &[
    (&["ntasks", "num-proc", "num-procs", "num-workers", "nproc", "workers"], NPROC),
    (&["gpus", "gpus-per-node", "ngpus", "npernode", "ntasks-per-node", "ppn"], NPROC),
    (&["N", "nodes", "num-machines", "num-nodes"], "`--nnodes N` says how many nodes the job has"),
    (
        &["elastic-training", "max-elastic-nodes", "min-elastic-nodes"],
        "`--nnodes MIN:MAX` makes a job elastic",
    ),
    (&["machine-rank", "rank"], "`--node-rank N` says which node this is"),
    (&["world-size"], "`--total-workers N` says how many workers run on all nodes"),
    (&["numactl"], "`--numa-binding node` binds each worker to the CPUs near its device"),
    (&["main-process-ip", "master-ip"], "`--master-addr HOST` names the node with rank 0"),
    (&["main-process-port"], "`--master-port PORT` is the port of the node with rank 0"),
    (
        &["device-ids", "exclude", "gpu", "gpu-ids", "include"],
        "`--devices LIST` chooses the devices of this node, as in `--devices 0,2`; `--devices=-1` leaves one out",
    ),
    (
        &["H", "host", "launcher", "machinefile"],
        "`--hosts LIST` or `--hostfile FILE` starts a launcher on each host by ssh; without ssh give the same line on each, \
         with `--nnodes N --rdzv-backend c10d --rdzv-endpoint HOST:PORT`",
    ),
    (&["cpu", "use-cpu"], "`--device-type cpu` runs the workers on the CPUs"),
    (
        &["max-retries", "restart", "restarts", "retries"],
        "`--max-restarts N` says how often the workers may start again",
    ),
    (&["multi-gpu"], "leave it out: each visible GPU has a worker unless `--nproc-per-node` says otherwise"),
    (
        &["c", "cpus-per-task", "num-cpu-threads-per-process"],
        "set `OMP_NUM_THREADS`, as in `OMP_NUM_THREADS=4 rankrun ...`",
    ),
    (
        &["accelerator", "deepspeed-config", "dynamo-backend", "mixed-precision", "precision", "strategy"],
        FOR_THE_PROGRAM,
    ),
    (&["use-deepspeed", "use-fsdp", "zero-stage"], FOR_THE_PROGRAM),
    (
        &["backend", "dist-backend"],
        "leave it out: the program chooses its backend, in `init_process_group(backend=...)`",
    ),
    (&["config-file"], "`--config PATH` reads options from a file in TOML"),
    (&["use-env"], "leave it out: every worker has `LOCAL_RANK` in its environment"),
    (&["no-local-rank"], "leave it out: arguments get a local rank only where they say `${local_rank}`"),
    (
        &["bind-core-list", "bind-cores-to-rank"],
        "`--bind-cores all` or `--bind-cores LIST` shares the cores of this node among its workers",
    ),
    (&["bind-to", "cpu-bind", "map-by"], "`--numa-binding node` binds each worker to CPUs near its device"),
    (&["x"], "workers inherit the environment: write `NAME=VALUE rankrun ...`"),
    (&["tag-output"], "`--tee 3` puts the rank in front of each line"),
    (&["o", "output"], "`--redirects 3 --log-dir DIR` writes the output of each worker to files"),
    (&["dry-run"], "`rankrun explain ...` says what would be launched, and starts nothing"),
    (
        &["json", "script"],
        "it stands behind a command, as in `rankrun explain --json train.py` or `rankrun status --json`",
    ),
    (&["watch"], "it stands behind `devices`: `rankrun devices --watch`"),
    (&["debug", "log-level", "loglevel"], "`-v` says what is done, `-vv` each step"),
    (&["allow-run-as-root"], "leave it out: any user may run rankrun"),
];
const NPROC: &str = "`--nproc-per-node N` says how many workers run on this node";
const FOR_THE_PROGRAM: &str =
    "rankrun only launches: such an option is the program's own, and stands behind the entrypoint";

/// Words in the place of a subcommand, and what to do instead.
const COMMANDS: &[(&[&str], &str)] = &[
    (
        &["cancel", "kill", "terminate"],
        "`rankrun stop JOB` stops a running job; `rankrun gc` ends what a crash left",
    ),
    (&["exec", "launch", "start"], "leave the word out, or write `rankrun run`"),
    (
        &["info", "jobs", "list", "ps"],
        "`rankrun ls` lists the running jobs, `rankrun gc --dry-run` what a crash left, `rankrun devices` the devices",
    ),
    (&["clean", "cleanup"], "did you mean `rankrun gc`?"),
    (&["check", "dry-run", "plan"], "did you mean `rankrun explain`?"),
    (&["accelerators", "gpu", "gpus", "nvidia-smi", "smi"], "did you mean `rankrun devices`?"),
    (&["topology"], "did you mean `rankrun topo`?"),
    (&["install"], "did you mean `rankrun shim on`?"),
    (
        &["help"],
        "`rankrun help` has all options; `rankrun help` with devices, nodes, restarts, stopping, output or the name of a \
         command says more of that",
    ),
];

/// The hint for options that nothing here knows.
pub(super) fn unknown_options_hint(words: &[String]) -> String {
    let answers: Vec<(&String, String)> =
        words.iter().filter_map(|word| Some((word, answer_to_option(word)?))).collect();
    match answers.as_slice() {
        [] => "an option of the program stands behind the script, as in `rankrun train.py --lr 0.1`; see `rankrun \
               --help` for ours"
            .to_owned(),
        [(_, answer)] if words.len() == 1 => answer.clone(),
        several => {
            let answers: Vec<String> =
                several.iter().map(|(word, answer)| format!("`{word}`: {answer}")).collect();
            answers.join("; ")
        }
    }
}

/// Our word for an option of another launcher, else the options that it may have meant.
fn answer_to_option(word: &str) -> Option<String> {
    let typed = word.split('=').next().unwrap_or_default().trim_start_matches('-').replace('_', "-");
    let typed = typed.replace("rendezvous", "rdzv");
    let name = if typed.len() == 1 { typed } else { typed.to_lowercase() };
    if let Some((_, ours)) = FOREIGN.iter().find(|(names, _)| names.contains(&name.as_str())) {
        return Some((*ours).to_owned());
    }
    let meant = similar_names(&name, options(CliFlavor::Rankrun).flat_map(long_names));
    let meant: Vec<String> = meant.iter().map(|name| format!("`--{name}`")).collect();
    did_you_mean(&meant)
}

/// The long name of our option for another launcher's, where one option alone says the same.
pub(super) fn option_for_foreign(name: &str) -> Option<&'static str> {
    let has_alias = |option: &&'static Arg| long_names(option).skip(1).any(|alias| alias == name);
    if let Some(option) = options(CliFlavor::Rankrun).find(has_alias) {
        return Some(option.long_name());
    }
    let (_, answer) = FOREIGN.iter().find(|(names, _)| names.contains(&name))?;
    let word = answer.strip_prefix("`--")?.split([' ', '`']).next()?;
    options(CliFlavor::Rankrun).map(LaunchOption::long_name).find(|long| *long == word)
}

/// The question, as in "did you mean `--a`, `--b` or `--c`?".
fn did_you_mean(quoted: &[String]) -> Option<String> {
    match quoted {
        [] => None,
        [only] => Some(format!("did you mean {only}?")),
        [others @ .., last] => Some(format!("did you mean {} or {last}?", others.join(", "))),
    }
}

/// The names that `name` may stand for: itself, one a slip away, names with its words, names
/// that it begins, the nearest.
fn similar_names<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let all: Vec<&str> = known.collect();
    let known = || all.iter().copied();
    if let Some(same) = known().find(|known| *known == name) {
        return vec![same];
    }
    let few = |names: Vec<&'a str>| (1..=MOST_ANSWERS).contains(&names.len()).then_some(names);
    let begun = || {
        let is_begun = |known: &&str| name.len() >= SHORTEST_BEGINNING && known.starts_with(name);
        few(known().filter(is_begun).collect())
    };
    let with_its_words = || {
        let has_all = |known: &&str| name.split('-').all(|part| known.split('-').any(|other| other == part));
        few(known().filter(has_all).collect())
    };
    nearest_of(name, known())
        .filter(|nearest| osa_distance(name, nearest) == 1)
        .map(|nearest| vec![nearest])
        .or_else(with_its_words)
        .or_else(begun)
        .or_else(|| nearest_of(name, known()).map(|nearest| vec![nearest]))
        .unwrap_or_default()
}

/// The name that is at most two slips away, or three where it is long; a letter that is missing, added, wrong or
/// swapped with its neighbour is one slip.
pub(super) fn nearest_of<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = if name.len() >= 12 { 3 } else { 2 };
    known
        .filter(|known| known.len().abs_diff(name.len()) <= most)
        .map(|known| (osa_distance(name, known), known))
        .filter(|(apart, _)| *apart <= most && 2 * *apart < name.len())
        .min()
        .map(|(_, known)| known)
}

/// The option of a subcommand that a word may have meant.
pub(super) fn similar_option_of(command: &str, word: &str) -> Option<String> {
    let known = options_of(command);
    let name = word.split('=').next().unwrap_or_default().trim_start_matches('-').replace('_', "-");
    if command == "devices" && matches!(name.as_str(), "l" | "loop") {
        return Some("`--watch` looks again every 2 seconds, `--watch=1` every second".to_owned());
    }
    if let Some(answer) = answer_behind(command, &name) {
        return Some(answer);
    }
    let meant = similar_names(&name.to_lowercase(), known.iter().copied());
    did_you_mean(&meant.iter().map(|name| format!("`--{name}`")).collect::<Vec<_>>())
}

/// What to do where a word behind a subcommand was meant in another way.
fn answer_behind(command: &str, name: &str) -> Option<String> {
    let is_list = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit() || byte == b',');
    let answer = match (command, name) {
        ("devices", _) if is_list => format!("`rankrun devices --id {name}` shows these alone"),
        ("gc", "all" | "a" | "f" | "prune" | "y" | "yes") => {
            "`rankrun gc` alone ends everything that crashed jobs left; `--dry-run` only lists it".to_owned()
        }
        ("gc", _) if is_list => {
            "leave it out: `gc` finds what crashed jobs left; a job that runs is stopped with `kill` and its \
             launcher's process id"
                .to_owned()
        }
        _ => return None,
    };
    Some(answer)
}

/// What `rankrun help` may have been asked about.
pub(super) fn help_topic_hint(word: &str) -> String {
    let known = subcommand::all().map(Command::get_name).chain(help::TOPICS);
    nearest_of(word, known).map_or_else(
        || format!("it knows {}, and the commands: see `rankrun help`", help::TOPICS.join(", ")),
        |nearest| format!("did you mean `rankrun help {nearest}`?"),
    )
}

/// What to do where an entrypoint that is not there may be a misspelt or foreign subcommand.
pub(super) fn answer_to_command(word: &str) -> Option<String> {
    if let Some((_, answer)) = COMMANDS.iter().find(|(words, _)| words.contains(&word)) {
        return Some((*answer).to_owned());
    }
    let nearest = nearest_of(word, subcommand::all().map(Command::get_name))?;
    (nearest != word).then(|| format!("did you mean `rankrun {nearest}`?"))
}

/// A warning for each variable with rankrun's prefix that nothing reads.
pub(super) fn unknown_variable_notices(facts: &Facts) -> Vec<Notice> {
    let filled = facts.environment().iter().filter(|(_, value)| !value.is_empty());
    let mut names: Vec<&str> = filled.filter_map(|(name, _)| name.to_str()).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().filter_map(|name| warn_of_variable(name, facts)).collect()
}

fn warn_of_variable(name: &str, facts: &Facts) -> Option<Notice> {
    let stem = name.strip_prefix(OUR_PREFIX).or_else(|| name.strip_prefix(TORCH_PREFIX))?;
    let variables = || options(CliFlavor::Rankrun).filter_map(|row| Some((row, row.variable()?)));
    if name == DEVICE && !is_inside_worker(facts) {
        return find_option("devices")
            .and_then(LaunchOption::variable)
            .map(|meant| Notice::WorkerVariable { name: DEVICE, meant });
    }
    let is_known = FOR_USERS.contains(&name)
        || FOR_WORKERS.contains(&name)
        || FOR_TESTS.iter().any(|prefix| name.starts_with(prefix))
        || variables().any(|(_, variable)| variable == name);
    if is_known {
        return None;
    }
    let stem = stem.to_lowercase().replace('_', "-");
    let rows: Vec<&'static Arg> = variables().map(|(row, _)| row).collect();
    let similar = similar_names(&stem, rows.iter().map(|row| row.long_name()));
    let of_option =
        |long: &&str| rows.iter().find(|row| row.long_name() == *long).and_then(|row| row.variable());
    let mut meant: Vec<String> = similar.iter().filter_map(of_option).collect();
    if meant.is_empty() {
        let bare = |name: &'static str| name.strip_prefix(OUR_PREFIX).unwrap_or(name);
        let typed = stem.to_uppercase().replace('-', "_");
        let nearest = nearest_of(&typed, FOR_USERS.into_iter().map(bare));
        meant.extend(nearest.map(|bare| format!("{OUR_PREFIX}{bare}")));
    }
    let quoted: Vec<String> = meant.iter().map(|name| format!("`{name}`")).collect();
    Some(Notice::UnknownVariable { name: name.to_owned(), question: did_you_mean(&quoted) })
}

#[cfg(test)]
mod tests;
