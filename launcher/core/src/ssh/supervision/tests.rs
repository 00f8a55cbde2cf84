//! Answers, ends and signals in made-up orders.

use super::*;

const VERSION: &str = "0.1.0";
const LIMIT: Duration = Duration::from_secs(60);

struct Job {
    state: FleetState,
    begin: Instant,
}

impl Job {
    #[expect(clippy::disallowed_methods, reason = "the first moment of a made-up time")]
    fn new(names: &[&str]) -> Self {
        let begin = Instant::now();
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Self { state: FleetState::new(names, ("/opt/rankrun".to_owned(), VERSION), (begin, LIMIT)), begin }
    }

    /// All agents are told to launch.
    fn launched(names: &[&str]) -> Self {
        let mut job = Self::new(names);
        for node in 0..names.len() {
            job.hello(node, VERSION);
        }
        job
    }

    fn at(&mut self, second: u64, input: FleetInput) -> Vec<FleetAction> {
        self.state.handle(self.begin + Duration::from_secs(second), input)
    }

    fn hello(&mut self, node: usize, version: &str) -> Vec<FleetAction> {
        let port = 4000 + u16::try_from(node).unwrap();
        let machine = self.state.names[node].trim_start_matches("alias-of-").to_owned();
        let hello = Hello { protocol: PROTOCOL, version: version.to_owned(), port, machine };
        self.at(0, FleetInput::Hello(node, hello))
    }

    fn end(&mut self, node: usize, code: i32) -> Vec<FleetAction> {
        self.at(1, FleetInput::Ended(node, Exit::Code(code), "last".to_owned()))
    }
}

fn killed() -> Exit {
    Exit::Signal { number: Signal::SIGKILL as i32, core_dumped: false }
}

fn reported(actions: &[FleetAction]) -> String {
    let error = actions.iter().find_map(|action| match action {
        FleetAction::Report(error) => Some(format!("{error}\n{}", error.hint())),
        _ => None,
    });
    error.unwrap_or_else(|| panic!("nothing is reported: {actions:?}"))
}

#[test]
fn agents_launch_when_all_have_answered() {
    let mut job = Job::new(&["a", "b"]);
    assert_eq!(job.hello(1, VERSION), []);
    assert_eq!(job.hello(0, VERSION), [FleetAction::Launch(0, 4000), FleetAction::Launch(1, 4000)]);
    assert_eq!(job.hello(0, VERSION), []);
    assert_eq!(job.state.deadline(), None);
    assert_eq!((job.end(0, 0), job.state.status()), (vec![], None));
    assert_eq!((job.end(1, 0), job.state.status()), (vec![], Some(ExitStatus::SUCCESS)));
}

#[test]
fn host_with_two_names_is_refused_with_both() {
    for names in [["a", "alias-of-a"], ["alias-of-a", "a"]] {
        let mut job = Job::new(&names);
        job.hello(1, VERSION);
        let said = reported(&job.hello(0, VERSION));
        assert!(
            said.starts_with(&format!("`{}` and `{}` are names of one host", names[0], names[1])),
            "{said}"
        );
    }
}

#[test]
fn signal_for_workers_reaches_all_nodes_and_stops_nothing() {
    let mut job = Job::new(&["a", "b"]);
    assert_eq!(job.at(0, FleetInput::Forward(10)), [], "no worker is there");
    job.hello(0, VERSION);
    job.hello(1, VERSION);
    let forward = |node| FleetAction::Forward(node, 10);
    assert_eq!(job.at(1, FleetInput::Forward(10)), [forward(0), forward(1)]);
    job.end(0, 0);
    assert_eq!(job.at(1, FleetInput::Forward(10)), [forward(1)]);
    job.end(1, 0);
    assert_eq!(job.state.status(), Some(ExitStatus::SUCCESS));
}

#[test]
fn other_version_is_refused_with_both() {
    let mut job = Job::new(&["a", "b"]);
    job.hello(0, VERSION);
    let actions = job.hello(1, "0.2.0");
    assert!(reported(&actions).starts_with("the host `b` has rankrun 0.2.0, and this one is 0.1.0"));
    assert_eq!(actions[1..], [FleetAction::Kill(0), FleetAction::Kill(1)]);
    for node in 0..2 {
        job.at(1, FleetInput::Ended(node, killed(), String::new()));
    }
    assert_eq!(job.state.status(), Some(ExitStatus::Code(LAUNCHER_FAILED)));
}

#[test]
fn host_without_agent_is_named_with_way_out() {
    for (code, part) in [
        (127, "the host `b` has no rankrun: neither `/opt/rankrun` nor `rankrun` in its PATH"),
        (127, "ssh b mkdir -p /opt && scp /opt/rankrun b:/opt/rankrun"),
        (255, "no agent on the host `b`: ssh ended (exit code 255): last"),
        (255, "`ssh -o BatchMode=yes b true`"),
    ] {
        let mut job = Job::new(&["a", "b"]);
        let actions = job.end(1, code);
        assert!(reported(&actions).contains(part), "{actions:?}");
        assert_eq!(actions[1..], [FleetAction::Kill(0)]);
    }
}

#[test]
fn silent_hosts_are_named_at_their_limit() {
    let mut job = Job::new(&["a", "b", "c"]);
    job.hello(1, VERSION);
    assert_eq!(job.at(59, FleetInput::Time), []);
    assert!(reported(&job.at(60, FleetInput::Time)).starts_with("no answer within 1m from `a`, `c`"));
}

#[test]
fn failed_node_decides_and_others_are_stopped_after_a_while() {
    let mut job = Job::launched(&["a", "b", "c"]);
    // The node of the failed worker may end after another one.
    assert_eq!(job.end(0, 1), []);
    assert_eq!(job.end(1, 7), []);
    assert_eq!(job.at(5, FleetInput::Time), []);
    assert_eq!(job.at(6, FleetInput::Time), [FleetAction::Stop(2, 15)]);
    job.end(2, 143);
    assert_eq!(job.state.status(), Some(ExitStatus::Code(7)));
}

#[test]
fn lost_connection_is_named_and_fails_job() {
    let mut job = Job::launched(&["a", "b"]);
    let actions = job.at(1, FleetInput::Ended(1, killed(), String::new()));
    let text = reported(&actions);
    assert!(
        text.starts_with("the connection to the host `b` is lost: ssh ended (killed by SIGKILL)"),
        "{text}"
    );
    job.end(0, 0);
    assert_eq!(job.state.status(), Some(ExitStatus::Code(LAUNCHER_FAILED)));
}

#[test]
fn signals_stop_all_nodes_and_third_kills() {
    let mut job = Job::launched(&["a", "b"]);
    let both = |action: fn(usize, i32) -> FleetAction| [action(0, 2), action(1, 2)];
    for _ in 0..2 {
        assert_eq!(job.at(1, FleetInput::Stop(2)), both(FleetAction::Stop));
    }
    assert_eq!(job.at(1, FleetInput::Stop(2)), [FleetAction::Kill(0), FleetAction::Kill(1)]);
    job.at(1, FleetInput::Ended(0, killed(), String::new()));
    job.end(1, 130);
    assert_eq!(job.state.status(), Some(ExitStatus::Code(130)));
}

#[test]
fn signal_before_answers_ends_clients() {
    let mut job = Job::new(&["a"]);
    assert_eq!(job.at(1, FleetInput::Stop(15)), [FleetAction::Kill(0)]);
    assert_eq!(job.hello(0, VERSION), []);
    job.at(1, FleetInput::Ended(0, killed(), String::new()));
    assert_eq!(job.state.status(), Some(ExitStatus::Code(143)));
}
