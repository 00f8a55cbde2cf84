//! The lines that the documents type into a console: the launcher accepts each of its own, without starting a job.
//!
//! A launch is read by `rankrun explain`, on a machine with eight fake GPUs. Another subcommand runs, without a job; it may
//! find nothing, but it must know its words. Lines of other programs have a reason in `OTHER_LINES`. A block that cannot be run so has `<!-- not run: REASON -->` above it. The sessions
//! of `recordings` run as they stand.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use harness::{Launch, Machine, MachineTree, can_use_namespaces, checkout, is_rankrun, session_launch};

use super::{documents, subcommands};

/// Parts two answers.
const SEPARATOR: char = '\u{1e}';
/// What would change this machine.
const CHANGES: [&str; 3] = ["rankrun gc", "rankrun shim on", "rankrun shim off"];
/// How lines of other programs begin, and which test runs them, or why none does.
const OTHER_LINES: [(&str, &str); 13] = [
    ("MASTER_PORT=29511 sh r", "tests/e2e/explain.rs runs such scripts"),
    ("cargo ", "tests/e2e/guide.rs builds the guide's crate, and CI the workspace"),
    ("echo '{\"version\":1", "tests/e2e/control.rs sends such lines"),
    ("examples/run", "tests/e2e/rust_examples.rs runs its program"),
    ("export ", "it sets a variable for the lines below it"),
    ("launcher/archive", "tests/e2e/install.rs packs the wheel"),
    ("launcher/wheel", "`tests/run wheel` builds the wheel"),
    ("/venv/bin/pip install ", "tests/e2e/install.rs installs the wheel"),
    ("pip install ", "tests/e2e/install.rs installs the wheel"),
    ("rm -r checkpoints", "a folder of tests/e2e/guide.rs is new"),
    ("rustup ", "it changes the toolchain of this machine"),
    ("sh ", "tests/e2e/leave_out.rs and explain.rs run such scripts, install_script.rs `install.sh`"),
    ("tests/run", "it runs this test"),
];
/// The exit status of a command line that was not understood.
const USAGE: &str = "2";

/// The lines that a document types, without those of marked blocks; a line that goes on is one. In a block of a script only
/// those that begin with `rankrun`.
fn typed_lines(document: &str) -> Vec<String> {
    let mut typed: Vec<String> = Vec::new();
    let (mut above, mut language, mut goes_on) = ("", "", false);
    for line in document.lines() {
        if let Some(fence) = line.strip_prefix("```") {
            let is_marked = above.starts_with("<!-- not run: ") || above.starts_with("<!-- recorded");
            language = if language.is_empty() && !is_marked { fence } else { "" };
            goes_on = false;
        } else if let Some(last) = typed.last_mut().filter(|_| goes_on) {
            *last = format!("{}{}", last.trim_end_matches('\\'), line.trim_start());
            goes_on = line.ends_with('\\');
        } else {
            let new = match language {
                "console" => {
                    line.split_once("$ ").filter(|(prompt, _)| is_prompt(prompt)).map(|(_, line)| line)
                }
                "sh" | "bash" => Some(line).filter(|line| line.starts_with("rankrun ")),
                _ => None,
            };
            typed.extend(new.map(str::to_owned));
            goes_on = new.is_some_and(|line| line.ends_with('\\'));
        }
        above = if line.is_empty() { above } else { line };
    }
    typed
}

/// Lines of a document's code that call a launcher, are not read by [`typed_lines`], and have no mark above their block.
fn unread_lines(document: &str) -> Vec<&str> {
    let is_call = |line: &str| ["rankrun ", "torchrun "].iter().any(|name| line.contains(name));
    let (mut above, mut block, mut unread) = ("", None, Vec::new());
    for line in document.lines() {
        if let Some(language) = line.strip_prefix("```") {
            let is_marked = above.starts_with("<!-- not run: ") || above.starts_with("<!-- recorded");
            block = block.is_none().then_some((language, is_marked));
        } else {
            let is_read = match block {
                None => !line.starts_with("    "),
                Some((_, true) | ("console" | "text" | "toml" | "yaml" | "rust" | "python", false)) => true,
                Some(("sh" | "bash", false)) => line.starts_with("rankrun ") || line.starts_with([' ', '#']),
                Some(_) => false,
            };
            unread.extend(Some(line).filter(|line| !is_read && is_call(line)));
        }
        above = if line.is_empty() { above } else { line };
    }
    unread
}

/// In front of a `$`: nothing, or the name of a node.
fn is_prompt(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// The line with `rankrun explain` in place of a launch, and whether it is one; none where no program of ours is called.
fn without_launch(line: &str, subcommands: &BTreeSet<String>) -> Option<(String, bool)> {
    let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let name = |word: &String| word.rsplit('/').next().unwrap_or_default().to_owned();
    let at = words.iter().position(|word| ["rankrun", "torchrun"].contains(&&*name(word)))?;
    let next = words.get(at + 1).map_or("", String::as_str);
    let is_other = ["run", "accelerate", "deepspeed", "explain"].iter().all(|launch| *launch != next);
    if name(&words[at]) == "torchrun" {
        words[at] = "rankrun explain torchrun".to_owned();
    } else if subcommands.contains(next) && is_other {
        words[at] = "rankrun".to_owned();
        return Some((words.join(" "), false));
    } else {
        words[at] = if next == "explain" { "rankrun" } else { "rankrun explain" }.to_owned();
    }
    Some((words.join(" "), true))
}

/// What the lines start: scripts and programs, none of which runs.
fn make_entrypoints(job: &Path) {
    for script in ["train.py", "rankrun.toml"] {
        fs::write(job.join(script), "").expect("the scratch folder is writable");
    }
    symlink(checkout().join("examples"), job.join("examples")).expect("the scratch folder takes a link");
    fs::create_dir_all(job.join("target/release")).expect("the scratch folder is writable");
    fs::create_dir_all(job.join("bin")).expect("the scratch folder is writable");
    let release = ["allreduce_bench", "data_parallel", "ddp_training", "gpu", "spiral"];
    let tools = ["jq", "nsys", "numactl", "strace"].map(|tool| format!("bin/{tool}"));
    let programs = release.map(|program| format!("target/release/{program}"));
    for program in programs.into_iter().chain(tools).chain(["train".to_owned()]) {
        let program = program.as_str();
        fs::write(job.join(program), "#!/bin/sh\n").expect("the scratch folder is writable");
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(job.join(program), executable).expect("the scratch folder is writable");
    }
}

/// The lines that were not accepted, each with its answer.
fn refused_lines(lines: &[(String, bool)], launch: Launch) -> Vec<String> {
    let job = launch.temporary().with_file_name("home").join("job");
    fs::create_dir_all(&job).expect("the scratch folder is writable");
    make_entrypoints(&job);
    let script = lines.iter().map(|(line, _)| format!("({line}\n)\nprintf '{SEPARATOR}%d{SEPARATOR}' $?\n"));
    let script =
        format!("exec 2>&1 </dev/null; PATH=${{0%/*}}:$PATH:$PWD/bin\n{}", script.collect::<String>());
    let outcome = launch.cwd(job).under(["sh", "-c", &script]).run();
    let out = outcome.expect_exit_code(0).stdout();
    let parts: Vec<&str> = out.split(SEPARATOR).collect();
    let answers = parts.chunks(2).filter_map(|part| Some((*part.first()?, *part.get(1)?)));
    let checked: Vec<_> = lines.iter().zip(answers).collect();
    assert_eq!(checked.len(), lines.len(), "{outcome}");
    let is_refused = |is_launch: bool, status: &str| if is_launch { status != "0" } else { status == USAGE };
    let refused = checked.into_iter().filter(|((_, is_launch), (_, status))| is_refused(*is_launch, status));
    refused.map(|((line, _), (answer, status))| format!("$ {line}\n{answer}[exit {status}]\n")).collect()
}

#[test]
fn documented_console_line_is_accepted_by_the_launcher() {
    if !is_rankrun() || !can_use_namespaces() {
        return;
    }
    let (subcommands, tree, machine) = (subcommands(), MachineTree::new(), Machine::gpus(8));
    let (mut count, mut refused, mut untested) = (0, Vec::new(), BTreeSet::new());
    for (path, text) in documents() {
        let unread = unread_lines(&text);
        assert!(
            unread.is_empty(),
            "{path} calls a launcher in a block that is not read: make it `console`, or say why not in \
             `<!-- not run: REASON -->` above it: {unread:#?}"
        );
        let typed = typed_lines(&text);
        let lines: Vec<_> = typed.iter().filter_map(|line| without_launch(line, &subcommands)).collect();
        let others = typed.iter().filter(|line| without_launch(line, &subcommands).is_none());
        let is_known = |line: &str| OTHER_LINES.iter().any(|(beginning, _)| line.starts_with(beginning));
        untested.extend(others.filter(|line| !is_known(line)).cloned());
        let changes = lines.iter().filter(|(line, _)| CHANGES.iter().any(|change| line.starts_with(change)));
        let changes: Vec<_> = changes.collect();
        assert!(changes.is_empty(), "{path} has lines that no test may run without a mark: {changes:?}");
        let launch = session_launch().under(tree.stage()).on(&machine);
        refused.extend(refused_lines(&lines, launch).into_iter().map(|answer| format!("{path}: {answer}")));
        count += lines.len();
    }
    assert!(untested.is_empty(), "no test runs these, and OTHER_LINES has no reason: {untested:#?}");
    assert!(
        refused.is_empty(),
        "the launcher refuses these; correct them, or say why in `<!-- not run: REASON -->` above the block\n{}",
        refused.join("\n")
    );
    assert!(count > 30, "{count}");
}

#[test]
fn call_of_a_launcher_in_an_unmarked_block_is_unread() {
    let document = "Text.\n\n    rankrun a\n\n```\nrankrun b\n```\n```sh\nrankrun c \\\n    rankrun d\nsrun rankrun e\n```\n\
                    <!-- not run: it needs MPI -->\n```\nmpirun rankrun f\n```\n```text\nrankrun g\n```\n";
    assert_eq!(unread_lines(document), ["    rankrun a", "rankrun b", "srun rankrun e"]);
}

#[test]
fn typed_line_parser_finds_prompts_and_continued_lines() {
    let document = "```console\n$ rankrun a \\\n    --b\nanswer $ x\nnode0$ torchrun c\n```\n<!-- not run: it waits -->\n\
                    ```console\n$ rankrun d\n```\n```sh\nrankrun e\nsrun rankrun f\n```\n";
    assert_eq!(typed_lines(document), ["rankrun a --b", "torchrun c", "rankrun e"]);
    let subcommands = ["ls", "run", "explain", "accelerate"].map(str::to_owned).into();
    let replaced = |line| without_launch(line, &subcommands);
    let launch = |line: &str| Some((line.to_owned(), true));
    assert_eq!(replaced("A=1 x/rankrun train.py"), launch("A=1 rankrun explain train.py"));
    assert_eq!(replaced("rankrun explain train.py"), launch("rankrun explain train.py"));
    assert_eq!(replaced("rankrun accelerate launch x"), launch("rankrun explain accelerate launch x"));
    assert_eq!(replaced("torchrun x"), launch("rankrun explain torchrun x"));
    assert_eq!(replaced("rankrun ls --json"), Some(("rankrun ls --json".to_owned(), false)));
    assert_eq!(replaced("cargo build"), None);
}
