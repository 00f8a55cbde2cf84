//! The processes of one kind of ranks, of which all make the same calls when they are told.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::Peers;
use super::place::hosts_script;

/// A program with its arguments, and variables of its environment.
pub(super) type Line = (Vec<OsString>, Vec<(OsString, OsString)>);

/// Ranks that wait for what they are told.
pub(crate) struct Team(Vec<(Child, ChildStdin, BufReader<ChildStdout>)>);

impl Team {
    /// Starts the ranks; rank r runs on processor r, counted around, and on nothing else.
    pub(super) fn start(
        Peers { place, world, processors }: Peers<'_>,
        command: impl Fn(u32) -> Line,
    ) -> Self {
        let start = |rank: u32| {
            let (line, environment) = command(rank);
            let processor = processors[rank as usize % processors.len()].to_string();
            let mut all: Vec<OsString> = Vec::new();
            if let Some(host) = place.host(rank, world) {
                all.extend([hosts_script(), "exec".into(), host.to_string().into()]);
            }
            all.extend(["taskset".into(), "-c".into(), processor.into()]);
            all.extend(line);
            let mut child = Command::new(&all[0])
                .args(&all[1..])
                .envs(environment)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("a rank starts");
            let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
            let stdout = BufReader::new(stdout.expect("a pipe was asked for"));
            (child, stdin.expect("a pipe was asked for"), stdout)
        };
        Self((0..world).map(start).collect())
    }

    /// How long each of so many calls took on rank 0.
    pub(crate) fn measure(&mut self, name: &str, bytes: usize, calls: usize) -> Vec<Duration> {
        for (_, stdin, _) in &mut self.0 {
            writeln!(stdin, "{name} {bytes} {calls}").expect("the rank lives");
        }
        let mut answers = self.0.iter_mut().map(|(_, _, stdout)| {
            let mut line = String::new();
            let read = stdout.read_line(&mut line).expect("the rank lives");
            assert!(read > 0, "a rank ended");
            line
        });
        let first = answers.next().expect("there are ranks");
        assert!(answers.all(|line| !line.trim().is_empty()), "a rank did nothing");
        first.split_whitespace().map(|number| Duration::from_nanos(number.parse().expect("a time"))).collect()
    }

    /// Ends the ranks.
    pub(crate) fn end(self) {
        for (mut child, stdin, stdout) in self.0 {
            drop((stdin, stdout));
            assert!(child.wait().expect("it is ours").success(), "a rank failed");
        }
    }
}
