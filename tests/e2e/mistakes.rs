//! Mistakes that people make, as terminal sessions with the answer, exit status and a grade: `mistakes/*.txt`.
//!
//! The grade answers one question: does a new user know what to do? 5: the message names the mistake and the way out;
//! 1: silence, or a wrong way out. A changed message is read again and graded anew.

use std::path::{Path, PathBuf};

use harness::{
    Launch, Lost, Machine, MachineTree, Session, can_use_namespaces, check_sessions, is_rankrun,
    memory_kills_alone, read_sessions, session_launch,
};

const FILES: [&str; 8] =
    ["command_line", "config", "devices", "entrypoint", "environment", "nodes", "subcommands", "workers"];

fn session_file(name: &str) -> PathBuf {
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
fn check_launcher_sessions(name: &str) {
    if is_rankrun() {
        check_sessions(&session_file(name), |session| {
            let launch = session_launch().env("RANKRUN_DEVICE_TYPE", "cpu");
            match session.on.as_deref() {
                None => Some(launch),
                Some("a full disk") => can_use_namespaces().then(|| launch.under(FULL_DISK)),
                Some(other) => panic!("no place is called `{other}`: {}", session.name),
            }
        });
    }
}

#[test]
fn mistakes_in_the_command_line_are_answered() {
    check_launcher_sessions("command_line");
}

#[test]
fn mistakes_in_the_configuration_file_are_answered() {
    check_launcher_sessions("config");
}

#[test]
fn mistakes_in_the_entrypoint_are_answered() {
    check_launcher_sessions("entrypoint");
}

#[test]
fn mistakes_in_the_environment_are_answered() {
    check_launcher_sessions("environment");
}

#[test]
fn mistakes_between_nodes_are_answered() {
    check_launcher_sessions("nodes");
}

#[test]
fn mistakes_of_subcommands_are_answered() {
    check_launcher_sessions("subcommands");
}

#[test]
fn mistakes_in_the_workers_program_are_answered() {
    let _alone = memory_kills_alone();
    check_launcher_sessions("workers");
}

/// Above the kernel's largest (`PID_MAX_LIMIT`): a pid that some process has would be shown with its name.
const NO_PROCESS: u32 = 9_000_001;

fn session_machine(session: &Session) -> Machine {
    match session.on.as_deref() {
        None => Machine::empty(),
        Some("1 GPU") => Machine::gpus(1),
        Some("2 GPUs") => Machine::gpus(2),
        Some("8 GPUs") => Machine::gpus(8),
        Some("2 busy GPUs") => Machine::gpus(2).busy(0, NO_PROCESS).busy(1, NO_PROCESS + 1),
        Some("2 GPUs, the second lost") => Machine::gpus(2).lost(1, Lost::Handle),
        Some("2 MIG GPUs") => Machine::mig(),
        Some(other) => panic!("no machine is called `{other}`: {}", session.name),
    }
}

#[test]
fn mistakes_about_devices_are_answered() {
    if can_use_namespaces() && is_rankrun() {
        let tree = MachineTree::new();
        let launch = |session: &Session| -> Option<Launch> {
            Some(session_launch().under(tree.stage()).on(&session_machine(session)))
        };
        check_sessions(&session_file("devices"), launch);
    }
}

#[test]
fn grades_of_mistakes_are_4_to_5_with_mean_4_6() {
    let pytorch = Path::new(env!("CARGO_MANIFEST_DIR")).join("pytorch/mistakes.txt");
    let files = FILES.iter().map(|name| session_file(name)).chain([pytorch]);
    let rows: Vec<Session> = files.flat_map(|path| read_sessions(&path).1).collect();
    let low: Vec<&Session> = rows.iter().filter(|row| row.grade < 4 || row.grade > 5).collect();
    assert!(low.is_empty(), "{low:#?}");
    let unreasoned: Vec<&Session> =
        rows.iter().filter(|row| row.grade < 5 && row.reason.is_empty()).collect();
    assert!(unreasoned.is_empty(), "a grade below 5 has its reason: {unreasoned:#?}");
    let with_former_message = rows.iter().filter(|row| row.was.is_some()).count();
    assert!(
        with_former_message >= 57 && rows.len() >= with_former_message + 25,
        "{with_former_message} of the list, {} in all",
        rows.len()
    );
    let points: usize = rows.iter().map(|row| usize::from(row.grade)).sum();
    assert!(points * 10 >= rows.len() * 46, "{points} points for {} rows", rows.len());
}
