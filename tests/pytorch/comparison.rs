//! A real launcher and rankrun on the same command lines: what each worker gets is compared, and the exit codes.
//!
//! Each worker writes its command, arguments, environment and CPUs into a folder (`programs/show_worker.py`). One Python
//! runs the real launcher for all command lines (`programs/real_launcher.py`).
#![expect(clippy::disallowed_methods, reason = "the real launcher is started for many command lines at once")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use harness::{Job, Launch, Machine, Name, Outcome, Scratch, frameworks, python, python_modules};
use serde_json::{Value, json};

use crate::programs::source;

/// In a word or a variable: the folder into which the workers write.
pub(crate) const FOLDER: &str = "{FOLDER}";

/// What the harness and Python itself add on either side.
const OF_HARNESS: [&str; 11] = [
    "PATH",
    "LD_LIBRARY_PATH",
    "TMPDIR",
    "HOME",
    "TERM",
    "RUST_BACKTRACE",
    "RANKRUN_E2E_MARK",
    "LC_CTYPE",
    "SHOW_FOLDER",
    "PYTHON_EXEC",
    "FAKE_MACHINE",
];

type Variables = BTreeMap<String, String>;

/// How a variable is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compared {
    Value,
    /// Both have it, or none.
    Presence,
    Nothing,
}

/// A launcher that rankrun stands in for.
pub(crate) struct RealLauncher {
    /// The file of `programs` that runs it.
    pub(crate) program: &'static str,
    /// The words of rankrun in front of its own.
    pub(crate) words: &'static [&'static str],
    /// Which variables of a worker are compared.
    pub(crate) compared: fn(&Case, &str) -> Compared,
}

/// A command line for both.
#[derive(Debug, Default)]
pub(crate) struct Case {
    /// The words of the launchers, which run at the same time.
    pub(crate) launchers: Vec<Vec<String>>,
    /// The environment of both.
    pub(crate) environment: Vec<(&'static str, String)>,
    /// What rankrun finds; the real launcher finds no accelerator.
    pub(crate) machine: Option<Machine>,
    /// All workers of all launchers.
    pub(crate) workers: usize,
    /// rankrun's exit code and the real launcher's.
    pub(crate) exit_codes: [i32; 2],
    /// Variables that must differ.
    pub(crate) differing: Vec<&'static str>,
    /// Only rankrun starts Python with `-u`.
    pub(crate) is_buffered: bool,
}

/// What one worker got.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Worker {
    /// The command line of the process, what Python makes of it, and the CPUs that it may use.
    process: [Value; 3],
    pub(crate) environment: Variables,
}

/// A case after both runs: rankrun's side and the real launcher's.
pub(crate) struct Compare {
    pub(crate) folders: [String; 2],
    pub(crate) workers: [Vec<Worker>; 2],
    pub(crate) outcomes: Vec<Outcome>,
}

/// The program without arguments, by its path.
pub(crate) fn show_worker() -> String {
    source("show_worker.py").to_str().expect("the checkout has a plain name").to_owned()
}

impl Case {
    /// One launcher with the words of this line.
    pub(crate) fn line(line: &str) -> Self {
        let words = line.split_whitespace().map(str::to_owned).collect();
        Self { launchers: vec![words], workers: 2, ..Self::default() }
    }

    /// One more launcher of the same job.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.launchers.extend(other.launchers);
        self
    }

    pub(crate) fn inheriting(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    pub(crate) fn on(mut self, machine: Machine) -> Self {
        self.machine = Some(machine);
        self
    }

    pub(crate) const fn of_workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// With exit codes of rankrun and of the real launcher. No worker writes a file.
    pub(crate) const fn fails(mut self, exit_codes: [i32; 2]) -> Self {
        self.workers = 0;
        self.exit_codes = exit_codes;
        self
    }

    pub(crate) fn differs(mut self, names: &[&'static str]) -> Self {
        self.differing.extend(names);
        self
    }

    pub(crate) fn has_word(&self, word: &str) -> bool {
        self.launchers.iter().flatten().any(|own| own == word)
    }

    fn shown(&self) -> String {
        let lines: Vec<String> = self.launchers.iter().map(|words| words.join(" ")).collect();
        lines.join(" & ")
    }

    /// The variables that both sides must agree on.
    fn compared(&self, launcher: &RealLauncher, worker: &Worker) -> Variables {
        let kept = worker.environment.iter().filter_map(|(name, value)| {
            if OF_HARNESS.contains(&name.as_str()) || self.differing.contains(&name.as_str()) {
                return None;
            }
            match (launcher.compared)(self, name) {
                Compared::Value => Some((name.clone(), value.clone())),
                Compared::Presence => Some((name.clone(), "…".to_owned())),
                Compared::Nothing => None,
            }
        });
        kept.collect()
    }

    /// What the two workers do not agree on.
    fn differences(&self, launcher: &RealLauncher, [ours, real]: [&Worker; 2]) -> Vec<String> {
        let variables = [ours, real].map(|worker| self.compared(launcher, worker));
        let names: BTreeSet<&String> = variables.iter().flat_map(BTreeMap::keys).collect();
        let of_variables = names.into_iter().filter_map(|name| {
            let [ours, real] = variables.each_ref().map(|variables| variables.get(name));
            (ours != real).then(|| format!("{name}: {ours:?}, the real one has {real:?}"))
        });
        let same = self.differing.iter().filter_map(|name| {
            let [ours, real] = [ours, real].map(|worker| worker.environment.get(*name));
            (ours == real).then(|| format!("{name} is {ours:?} on both sides"))
        });
        let mut our_process = ours.process.clone();
        if self.is_buffered
            && let Some(command) = our_process[0].as_array_mut()
        {
            command.retain(|word| word != "-u");
        }
        let pairs = our_process.iter().zip(&real.process).filter(|(ours, real)| ours != real);
        let of_process = pairs.map(|(ours, real)| format!("{ours}, the real one has {real}"));
        of_variables.chain(same).chain(of_process).collect()
    }
}

impl RealLauncher {
    /// Runs all cases on both sides and compares what each worker gets.
    #[track_caller]
    pub(crate) fn compare(&self, cases: &[Case], scratch: &Scratch) -> Vec<Compare> {
        let at_side = |at: usize, side: &str| scratch.folder(&format!("{side}{at}"), 0o755);
        let folders: Vec<[String; 2]> =
            (0..cases.len()).map(|at| [at_side(at, "ours"), at_side(at, "real")]).collect();
        let real = self.run_real(cases, &folders, scratch);
        let mut differences = Vec::new();
        let mut compared = Vec::new();
        for ((case, folders), real_codes) in cases.iter().zip(folders).zip(real) {
            let outcomes = self.run_ours(case, &folders[0]);
            let codes = [outcomes.iter().filter_map(|outcome| outcome.status.code()).collect(), real_codes];
            let expected = case.exit_codes.map(|code| vec![code; case.launchers.len()]);
            let workers = folders.each_ref().map(|folder| read_workers(folder));
            let counts = workers.each_ref().map(Vec::len);
            let mut found = Vec::new();
            if codes != expected {
                let ours: String = outcomes.iter().map(ToString::to_string).collect();
                found.push(format!("exit codes {codes:?} and not {expected:?}\n{ours}"));
            }
            if counts != [case.workers; 2] {
                found.push(format!("{counts:?} workers and not {}", case.workers));
            }
            for pair in workers[0].iter().zip(&workers[1]) {
                found.extend(case.differences(self, pair.into()));
            }
            differences.extend(found.into_iter().map(|difference| format!("{}: {difference}", case.shown())));
            compared.push(Compare { folders, workers, outcomes });
        }
        assert!(differences.is_empty(), "{}", differences.join("\n"));
        compared
    }

    fn run_ours(&self, case: &Case, folder: &str) -> Vec<Outcome> {
        let start = |words: &Vec<String>| {
            let launch = Launch::new(Name::Rankrun).with_torch().args(self.words.iter().copied());
            let launch = launch.args(words.iter().map(|word| word.replace(FOLDER, folder)));
            let launch = launch.env("PYTHONPATH", modules()).env("SHOW_FOLDER", folder);
            let launch = case.machine.iter().fold(launch, Launch::on);
            let variables = case.environment.iter();
            variables
                .fold(launch, |launch, (name, value)| launch.env(name, value.replace(FOLDER, folder)))
                .start()
        };
        let jobs: Vec<Job> = case.launchers.iter().map(start).collect();
        jobs.into_iter().map(Job::wait).collect()
    }

    /// The exit codes of the real launchers of each case.
    fn run_real(&self, cases: &[Case], folders: &[[String; 2]], scratch: &Scratch) -> Vec<Vec<i32>> {
        let [home, temporary] = ["home", "tmp"].map(|name| scratch.folder(name, 0o755));
        let line = |(case, [_, folder]): (&Case, &[String; 2])| {
            let mut environment = json!({
                "PATH": std::env::var("PATH").unwrap_or_default(),
                "HOME": home,
                "TMPDIR": temporary,
                "PYTHONPATH": modules(),
                "SHOW_FOLDER": folder,
            });
            for (name, value) in &case.environment {
                environment[*name] = json!(value.replace(FOLDER, folder));
            }
            let words = |words: &Vec<String>| words.iter().map(|word| word.replace(FOLDER, folder)).collect();
            let launchers: Vec<Vec<String>> = case.launchers.iter().map(words).collect();
            format!("{}\n", json!({ "launchers": launchers, "environment": environment }))
        };
        let lines: String = cases.iter().zip(folders).map(line).collect();
        let mut command = Command::new(python());
        command.arg(source(self.program)).env("PYTHONPATH", modules()).env("DS_ACCELERATOR", "cpu");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // What the launchers print is on stderr, which a failing test shows.
        let mut child = command.spawn().expect("Python starts");
        let mut input = child.stdin.take().expect("it is a pipe");
        input.write_all(lines.as_bytes()).expect("Python reads its input");
        drop(input);
        let output = child.wait_with_output().expect("Python ends");
        let codes: Result<Vec<_>, _> =
            String::from_utf8_lossy(&output.stdout).lines().map(serde_json::from_str).collect();
        let codes = codes.expect("a line has exit codes");
        assert_eq!(codes.len(), cases.len(), "the real launcher answers for each case");
        codes
    }
}

/// `PATH` with a folder of stand-ins for programs in front.
pub(crate) fn path_with(folder: &str) -> String {
    format!("{folder}:{}", std::env::var("PATH").unwrap_or_default())
}

/// PyTorch's modules, the frameworks, and the folder of the programs, for modules by name.
fn modules() -> String {
    let programs = source("show_worker.py").parent().expect("it is in a folder").to_owned();
    python_modules(&[frameworks(), programs]).into_string().expect("a path is text")
}

/// What the workers wrote into the folder, by rank.
#[track_caller]
fn read_workers(folder: &str) -> Vec<Worker> {
    let entries = fs::read_dir(folder).expect("the folder is ours").flatten();
    let files =
        entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "json"));
    let read = |path| {
        let bytes = fs::read(path).expect("the file is whole");
        let mut shown: Value = serde_json::from_slice(&bytes).expect("a worker wrote it");
        let environment = serde_json::from_value(shown["environment"].take()).expect("variables are texts");
        Worker { process: ["command", "argv", "cpus"].map(|key| shown[key].take()), environment }
    };
    let mut workers: Vec<Worker> = files.map(read).collect();
    workers.sort_by_key(|worker| worker.environment.get("RANK").cloned());
    workers
}
