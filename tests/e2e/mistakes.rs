//! Mistakes that people make, as terminal sessions with the answer, exit status and a grade: `mistakes/*.txt`.
//!
//! The grade answers one question: does a new user know what to do? 5: the message names the mistake and the way out;
//! 1: silence, or a wrong way out. A changed message is read again and graded anew.

use std::path::{Path, PathBuf};

use harness::{
    Launch, Lost, Machine, MachineTree, Session, check_sessions, memory_kills_alone, namespaces, only_ours,
    read_sessions, session_launch,
};

const FILES: [&str; 8] =
    ["command_line", "config", "devices", "entrypoint", "environment", "nodes", "subcommands", "workers"];

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("e2e/mistakes/{name}.txt"))
}

/// `logs/` is a file system without a free block.
const FULL_DISK: [&str; 7] = [
    "unshare",
    "--mount",
    "--propagation=private",
    "sh",
    "-c",
    "mkdir logs && mount -t tmpfs -o size=8k tmpfs logs && cat /dev/zero 2>/dev/null >logs/zeros; exec \"$@\"",
    "sh",
];

/// Rows that need no machine but this one.
#[track_caller]
fn check(name: &str) {
    if only_ours() {
        check_sessions(&file(name), |session| {
            let launch = session_launch().env("RANKRUN_DEVICE_TYPE", "cpu");
            match session.on.as_deref() {
                None => Some(launch),
                Some("a full disk") => namespaces().then(|| launch.under(FULL_DISK)),
                Some(other) => panic!("no place is called `{other}`: {}", session.name),
            }
        });
    }
}

#[test]
fn mistakes_in_the_command_line_are_answered() {
    check("command_line");
}

#[test]
fn mistakes_in_the_configuration_file_are_answered() {
    check("config");
}

#[test]
fn mistakes_in_the_entrypoint_are_answered() {
    check("entrypoint");
}

#[test]
fn mistakes_in_the_environment_are_answered() {
    check("environment");
}

#[test]
fn mistakes_between_nodes_are_answered() {
    check("nodes");
}

#[test]
fn mistakes_of_subcommands_are_answered() {
    check("subcommands");
}

#[test]
fn mistakes_in_the_workers_program_are_answered() {
    let _alone = memory_kills_alone();
    check("workers");
}

fn machine(session: &Session) -> Machine {
    match session.on.as_deref() {
        None => Machine::empty(),
        Some("1 GPU") => Machine::gpus(1),
        Some("2 GPUs") => Machine::gpus(2),
        Some("8 GPUs") => Machine::gpus(8),
        Some("2 busy GPUs") => Machine::gpus(2).busy(0, 4242).busy(1, 4343),
        Some("2 GPUs, the second lost") => Machine::gpus(2).lost(1, Lost::Handle),
        Some("2 MIG GPUs") => Machine::mig(),
        Some(other) => panic!("no machine is called `{other}`: {}", session.name),
    }
}

#[test]
fn mistakes_about_devices_are_answered() {
    if namespaces() && only_ours() {
        let tree = MachineTree::new();
        let launch = |session: &Session| -> Option<Launch> {
            Some(session_launch().under(tree.stage()).on(&machine(session)))
        };
        check_sessions(&file("devices"), launch);
    }
}

#[test]
fn grades_of_mistakes_are_4_to_5_with_mean_4_6() {
    let pytorch = Path::new(env!("CARGO_MANIFEST_DIR")).join("pytorch/mistakes.txt");
    let files = FILES.iter().map(|name| file(name)).chain([pytorch]);
    let rows: Vec<Session> = files.flat_map(|path| read_sessions(&path).1).collect();
    let low: Vec<&Session> = rows.iter().filter(|row| row.grade < 4 || row.grade > 5).collect();
    assert!(low.is_empty(), "{low:#?}");
    let unreasoned: Vec<&Session> =
        rows.iter().filter(|row| row.grade < 5 && row.reason.is_empty()).collect();
    assert!(unreasoned.is_empty(), "a grade below 5 has its reason: {unreasoned:#?}");
    let known = rows.iter().filter(|row| row.was.is_some()).count();
    assert!(known >= 57 && rows.len() >= known + 25, "{known} of the list, {} in all", rows.len());
    let points: usize = rows.iter().map(|row| usize::from(row.grade)).sum();
    assert!(points * 10 >= rows.len() * 46, "{points} points for {} rows", rows.len());
}
