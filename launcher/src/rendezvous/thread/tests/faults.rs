//! Nodes and stores that go without a word.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

pub(super) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A job whose first agent hosts the store.
fn hosted(min: u32, max: u32) -> Job {
    Job { host: "localhost".to_owned(), port: free_port(), is_host: None, ..Job::at(&store(), min, max) }
}

#[test]
fn the_first_agent_hosts() {
    let job = hosted(2, 2);
    let agents = job.round(2);
    agents.iter().for_each(Agent::succeed);
    for agent in agents.into_iter().rev() {
        assert!(matches!(agent.news(), News::AllSucceeded));
        agent.close(true, None);
    }
}

#[test]
fn a_node_that_drops_is_noticed_within_its_lease() {
    let store = store();
    let mut job = Job::at(&store, 1, 2);
    job.times.lease = Duration::from_secs(2);
    let mut agents = job.round(2);
    drop(agents.remove(1));
    assert!(matches!(agents[0].changed(), Change::PeerLost { .. }));
    agents[0].join();
    assert_eq!(agents[0].joined().nodes.get(), 1);
}

#[test]
fn the_host_notices_at_once() {
    let mut job = hosted(1, 2);
    // Nobody waits for the lease here.
    job.times.lease = Duration::from_secs(1000);
    let mut agents = job.round(2);
    drop(agents.remove(1));
    assert!(matches!(agents[0].changed(), Change::PeerLost { .. }));
    agents[0].join();
    assert_eq!(agents[0].joined().nodes.get(), 1);
}

/// Why the job is over, in the words of the node that has ended it.
#[track_caller]
pub(super) fn why_node_ended_job(over: &Over) -> (NodeRank, &str) {
    let Over::Closed { failure: Some(note) } = over else { panic!("{over:?}") };
    (note.node_rank, note.why_node_ended_job().expect("it tells of a node"))
}

#[test]
fn the_host_that_leaves_ends_the_job_and_says_why() {
    let mut job = hosted(1, 2);
    (job.times.lease, job.node_rank) = (Duration::from_secs(1000), Some(NodeRank(1)));
    let host = job.agent();
    // Whoever hosts has said so before anybody else can come.
    assert!(host.note().contains("hosts"), "the first one");
    let other = Job { node_rank: Some(NodeRank(0)), ..job }.agent();
    other.rejoined();
    host.leave("it was told to stop by SIGTERM");
    let over = std::iter::repeat_with(|| other.news()).find_map(|news| match news {
        News::Over(over) => Some(over),
        _ => None,
    });
    assert_eq!(why_node_ended_job(&over.unwrap()), (NodeRank(1), "it was told to stop by SIGTERM"));
}

/// While its workers are being stopped it is still there, and the others need not wait for its end to know.
#[test]
fn the_host_that_stops_says_so_at_once_and_not_to_itself() {
    let mut job = hosted(2, 2);
    job.times.lease = Duration::from_secs(1000);
    let agents = job.round(2);
    agents[0].rendezvous.wish(Wish::Stopping { why: "its time limit is over".to_owned() });
    assert_eq!(why_node_ended_job(&agents[1].over()).1, "its time limit is over");
    // What fails here now is the stop's doing.
    agents[0].fail(&note(0));
    let [host, other] = agents.try_into().ok().unwrap();
    other.leave("the job has ended");
    assert!(host.rendezvous.receive().is_none());
    assert_eq!(host.rendezvous.fence(), None);
    host.leave("its time limit is over");
}

/// Who is still connected may have more to read, or its last words to write.
#[test]
fn the_host_stays_until_the_others_have_heard() {
    let mut job = hosted(2, 2);
    job.times.lease = Duration::from_secs(1000);
    let mut agents = job.round(2);
    let host = agents.remove(0);
    host.rendezvous.wish(Wish::Stopping { why: "its time limit is over".to_owned() });
    assert_eq!(why_node_ended_job(&agents[0].over()).1, "its time limit is over");
    let before = Instant::now();
    host.leave("its time limit is over");
    assert!(before.elapsed() >= Duration::from_secs(1), "somebody is still connected");
}

#[test]
fn who_stops_without_the_store_leaves_the_others_alone() {
    let mut job = hosted(1, 2);
    job.times.lease = Duration::from_secs(1000);
    let mut agents = job.round(2);
    let stops = agents.remove(1);
    stops.rendezvous.wish(Wish::Stopping { why: "SIGTERM".to_owned() });
    stops.leave("SIGTERM");
    assert!(matches!(agents[0].changed(), Change::PeerLeft { why, .. } if why == "SIGTERM"));
}

#[test]
fn a_lost_node_is_to_blame() {
    let mut job = hosted(1, 2);
    job.times.lease = Duration::from_secs(1000);
    let mut agents = job.round(2);
    agents[0].rendezvous.wish(Wish::Blame);
    assert!(matches!(agents[0].news(), News::Blamed(None)));
    drop(agents.remove(1));
    assert!(matches!(agents[0].changed(), Change::PeerLost { .. }));
    agents[0].rendezvous.wish(Wish::Blame);
    assert!(matches!(agents[0].news(), News::Blamed(Some(_))));
}

/// The store is another program's, as torchrun's, and says nothing of closed connections.
#[test]
fn where_nobody_sees_connections_close_who_has_failed_waits_for_the_lease_of_who_is_silent() {
    let store = store();
    let mut job = Job::at(&store, 1, 2);
    job.times.lease = Duration::from_secs(2);
    let mut agents = job.round(2);
    agents[0].rendezvous.wish(Wish::Blame);
    assert!(matches!(agents[0].news(), News::Blamed(None)), "the other lives");
    drop(agents.remove(1));
    agents[0].rendezvous.wish(Wish::Blame);
    let answer = agents[0].news();
    assert!(matches!(&answer, News::Blamed(Some(_))), "{answer:?}");
}

#[test]
fn a_failure_that_is_told_before_its_cause_is_known_is_still_the_lost_nodes() {
    let mut job = hosted(1, 2);
    job.times.lease = Duration::from_secs(1000);
    let mut agents = job.round(2);
    let first = agents.remove(0);
    first.fail(&note(0));
    assert_eq!(agents[0].changed(), Change::PeerFailed(note(0)));
    drop(agents);
    let blamed = std::iter::repeat_with(|| {
        first.rendezvous.wish(Wish::Blame);
        first.news()
    });
    // The end of the other's connections may come after the first question.
    let answer = blamed.into_iter().find(|answer| !matches!(answer, News::Blamed(None)));
    assert!(matches!(&answer, Some(News::Blamed(Some(_)))), "{answer:?}");
}

#[test]
fn all_learn_that_a_lost_node_was_the_cause_of_what_was_told_before() {
    let mut job = hosted(1, 3);
    (job.times.lease, job.times.last_call) = (Duration::from_secs(1000), PATIENCE);
    let mut agents = job.round(3);
    let (first, second, lost) = (agents.remove(0), agents.remove(0), agents.remove(0));
    first.fail(&note(0));
    assert_eq!(second.changed(), Change::PeerFailed(note(0)));
    assert_eq!(lost.changed(), Change::PeerFailed(note(0)));
    drop(lost);
    let mut blamed = std::iter::repeat_with(|| {
        first.rendezvous.wish(Wish::Blame);
        first.news()
    });
    let answer = blamed.find(|answer| !matches!(answer, News::Blamed(None)));
    assert!(matches!(&answer, Some(News::Blamed(Some(_)))), "{answer:?}");
    assert!(matches!(second.changed(), Change::PeerFailed(told) if told.is_of_lost_node()));
    first.leave("the test is over");
}

#[test]
fn what_is_told_just_before_the_next_round_is_told() {
    let store = store();
    let agents = Job::at(&store, 2, 2).round(2);
    agents[0].fail(&note(0));
    agents[0].join();
    assert_eq!(agents[1].changed(), Change::PeerFailed(note(0)));
    agents[1].join();
    assert!(agents.iter().all(|agent| agent.joined().number == 1));
}

#[test]
fn a_lost_store_is_an_error_that_names_it() {
    let store = store();
    let mut job = Job::at(&store, 2, 2);
    job.times.lease = Duration::from_secs(2);
    let endpoint = format!("127.0.0.1:{}", job.port);
    let agents = job.round(2);
    drop(store);
    for agent in &agents {
        let error = agent.failed();
        assert!(
            matches!(&error, RendezvousError::StoreLost { endpoint: named, .. } if *named == endpoint),
            "{error}"
        );
    }
}

/// What is between an agent and a store, and can stop to let anything through.
pub(super) struct Wall {
    pub(super) port: u16,
    /// The next bytes break the connection that they come over.
    breaks: Arc<AtomicBool>,
    is_open: Arc<AtomicBool>,
    /// The connection of this number is let through also then.
    spared: Arc<AtomicUsize>,
}

impl Wall {
    fn before(store: &StoreServer) -> Self {
        Self::to(store.local_addr())
    }

    pub(super) fn to(store: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_open = Arc::new(AtomicBool::new(true));
        let breaks = Arc::new(AtomicBool::new(false));
        let spared = Arc::new(AtomicUsize::new(usize::MAX));
        let wall = Self {
            port,
            breaks: Arc::clone(&breaks),
            is_open: Arc::clone(&is_open),
            spared: Arc::clone(&spared),
        };
        thread::spawn(move || {
            for (number, near) in listener.incoming().map_while(Result::ok).enumerate() {
                let Ok(far) = TcpStream::connect(store) else { return };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (is_open, spared) = (Arc::clone(&is_open), Arc::clone(&spared));
                    let breaks = Arc::clone(&breaks);
                    let lets =
                        move || is_open.load(Ordering::SeqCst) || spared.load(Ordering::SeqCst) == number;
                    thread::spawn(move || pass(from, to, lets, &breaks));
                }
            }
        });
        wall
    }

    /// Lets nothing through any more.
    pub(super) fn closes(&self) {
        self.is_open.store(false, Ordering::SeqCst);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, lets: impl Fn() -> bool, breaks: &AtomicBool) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if breaks.swap(false, Ordering::SeqCst) {
            break;
        }
        if lets() && to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    for stream in [&from, &to] {
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}

#[test]
fn a_store_that_is_silent_lets_the_fence_come_and_its_answer_puts_it_off() {
    let store = store();
    let wall = Wall::before(&store);
    let mut job = Job { port: wall.port, ..Job::at(&store, 1, 1) };
    job.times.lease = Duration::from_secs(2);
    let agent = job.round(1).remove(0);
    let first = agent.rendezvous.fence().unwrap();
    assert_eq!(first.kill_by - first.stop_at, Duration::from_millis(500));
    wall.closes();
    let fence = loop {
        let fence = agent.rendezvous.fence().unwrap();
        match fence.stop_at.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => thread::sleep(left),
            _ => break fence,
        }
    };
    wall.is_open.store(true, Ordering::SeqCst);
    let deadline = Instant::now() + PATIENCE;
    while agent.rendezvous.fence().unwrap() == fence {
        assert!(Instant::now() < deadline, "no sign of life");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The first two connections are those for calls and for the bell, and nothing new is let through either.
#[test]
fn what_a_call_waits_for_puts_off_no_sign_of_life() {
    let store = store();
    let wall = Wall::before(&store);
    let mut job = Job { port: wall.port, ..Job::at(&store, 1, 2) };
    job.times.lease = Duration::from_secs(2);
    let agent = job.round(1).remove(0);
    wall.spared.store(2, Ordering::SeqCst);
    wall.closes();
    let first = agent.rendezvous.fence().unwrap();
    loop {
        let fence = agent.rendezvous.fence().unwrap();
        if fence.stop_at > first.kill_by + job.times.lease {
            return;
        }
        let left = fence.stop_at.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "the fence has come");
        thread::sleep(left.min(Duration::from_millis(20)));
    }
}

#[test]
fn a_store_that_stays_silent_is_lost() {
    let store = store();
    let wall = Wall::before(&store);
    let mut job = Job { port: wall.port, ..Job::at(&store, 1, 1) };
    job.times = RoundTimes { lease: Duration::from_secs(1), join: Duration::from_secs(2), ..job.times };
    let agent = job.round(1).remove(0);
    wall.closes();
    assert!(matches!(agent.failed(), RendezvousError::StoreLost { .. }));
}

/// The thread waits for an answer that does not come, and nobody waits for the thread.
/// A node that was done joins again, since another one was lost; that one comes back, and was done too.
#[test]
fn a_round_in_which_all_have_succeeded_is_a_success_for_those_who_were_about_to_repeat_it() {
    let store = store();
    let agents = Job::at(&store, 2, 2).round(2);
    agents[0].succeed();
    agents[0].join();
    agents[1].succeed();
    assert!(matches!(agents[1].news(), News::AllSucceeded));
    let [repeats, ends] = <[Agent; 2]>::try_from(agents).ok().unwrap();
    ends.close(true, None);
    assert!(matches!(repeats.over(), Over::NotNeeded));
}

#[test]
fn who_leaves_a_store_that_is_silent_goes_at_once() {
    let store = store();
    let wall = Wall::before(&store);
    let mut job = Job { port: wall.port, ..Job::at(&store, 1, 1) };
    job.times.lease = PATIENCE;
    let agent = job.round(1).remove(0);
    wall.closes();
    let began = Instant::now();
    agent.leave("somebody has pressed Ctrl-C");
    assert!(began.elapsed() < PATIENCE / 10, "{:?}", began.elapsed());
}

#[test]
fn who_was_taken_for_dead_ends_the_job_of_nobody_else() {
    let store = store();
    let wall = Wall::before(&store);
    let mut job = Job::at(&store, 1, 2);
    job.times.lease = Duration::from_secs(2);
    let behind = Job { port: wall.port, ..job.clone() };
    let (one, other) = (job.agent(), behind.agent());
    assert_eq!((one.joined().nodes.get(), other.joined().nodes.get()), (2, 2));
    wall.closes();
    assert!(matches!(one.changed(), Change::PeerLost { .. }));
    one.join();
    assert_eq!(one.joined().nodes.get(), 1);
    // Its way to the store is mended in the moment in which it goes.
    wall.is_open.store(true, Ordering::SeqCst);
    other.close(false, Some(note(1)));
    one.succeed();
    assert!(matches!(one.news(), News::AllSucceeded));
}

#[test]
fn the_end_is_told_over_a_new_connection_where_the_old_one_is_lost() {
    let store = store();
    let wall = Wall::before(&store);
    let job = Job::at(&store, 2, 2);
    let behind = Job { port: wall.port, ..job.clone() };
    let (one, other) = (job.agent(), behind.agent());
    assert_eq!((one.joined().nodes.get(), other.joined().nodes.get()), (2, 2));
    wall.breaks.store(true, Ordering::SeqCst);
    other.close(false, Some(note(1)));
    let over = one.over();
    assert!(matches!(&over, Over::Closed { failure: Some(first) } if *first == note(1)), "{over:?}");
}

#[test]
fn the_fence_outlives_the_store_but_not_the_job() {
    let store = store();
    let mut job = Job::at(&store, 2, 2);
    job.times.lease = Duration::from_secs(2);
    let mut agents = job.round(2);
    agents.remove(0).close(true, None);
    assert!(matches!(agents[0].over(), Over::Closed { .. }));
    assert_eq!(agents[0].rendezvous.fence(), None, "nobody goes on");

    job.run_id = RunId("other".to_owned());
    let agent = Job { nodes: range(1, 1), ..job }.round(1).remove(0);
    drop(store);
    assert!(matches!(agent.failed(), RendezvousError::StoreLost { .. }));
    assert!(agent.rendezvous.fence().is_some(), "others may still reach it");
}

#[test]
fn another_store_at_the_same_place_is_refused() {
    let first = store();
    let addr = first.local_addr();
    let job = Job::at(&first, 1, 1);
    let agent = job.round(1).remove(0);
    drop(first);
    let _second = StoreServer::bind(addr).unwrap();
    let error = agent.failed();
    assert!(matches!(&error, RendezvousError::AnotherStore { .. }), "{error}");
}

#[test]
fn nobody_listens() {
    let mut job = Job::at(&store(), 1, 1);
    job.times.read = Duration::from_millis(300);
    let error = job.agent().failed();
    assert!(matches!(&error, RendezvousError::Unreachable { .. }), "{error}");
}

#[test]
fn a_host_name_that_means_nothing() {
    let mut job = Job::at(&store(), 1, 1);
    job.host = "no-such-host.invalid".to_owned();
    job.is_host = None;
    job.times.read = Duration::from_millis(300);
    let error = job.agent().failed();
    assert!(matches!(&error, RendezvousError::NoSuchHost { host, .. } if *host == job.host), "{error}");
    assert!(error.to_string().contains("`no-such-host.invalid`, which `--rdzv-endpoint` names"), "{error}");
}

#[test]
fn a_port_of_somebody_else_is_no_store() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut job = Job { is_host: Some(true), ..Job::at(&store(), 1, 1) };
    job.port = taken.local_addr().unwrap().port();
    let error = Rendezvous::open(job.setup()).unwrap_err();
    assert!(error.to_string().contains(&job.port.to_string()), "{error}");
}

#[test]
fn an_interface_that_is_not_there_is_refused_at_once() {
    let mut setup = Job::at(&store(), 1, 1).setup();
    setup.network.iface = Some("nope0".to_owned());
    let error = Rendezvous::open(setup).unwrap_err();
    assert!(error.to_string().contains("`nope0`") && error.to_string().contains("`lo`"), "{error}");
}

#[test]
fn the_address_is_said() {
    let store = store();
    let mut setup = Job::at(&store, 2, 2).setup();
    setup.network.iface = Some("lo".to_owned());
    let agent = Agent::of(setup);
    agent.join();
    let note = agent.note();
    assert!(note.contains("`127.0.0.1`") && note.ends_with("the address of `lo`"), "{note}");
}

#[test]
fn an_endpoint_of_the_loopback_leaves_the_store_open_to_others() {
    let is_open = |iface: Option<&str>| {
        let job = hosted(2, 2);
        let mut setup = job.setup();
        setup.network.iface = iface.map(str::to_owned);
        let _agent = Agent::of(setup);
        TcpStream::connect(("127.0.0.1", job.port)).unwrap();
        // An address of the loopback too, but another one.
        TcpStream::connect(("127.0.0.2", job.port)).is_ok()
    };
    assert!(is_open(None));
    assert!(!is_open(Some("lo")));
}

#[test]
fn a_given_address_of_another_machine_is_told_once() {
    let store = store();
    let mut setup = Job::at(&store, 2, 2).setup();
    let RendezvousSpec::C10d { local_addr, .. } = &mut setup.spec else { panic!("a job of many nodes") };
    *local_addr = Some("203.0.113.7".to_owned());
    let agent = Agent::of(setup);
    agent.join();
    let note = agent.note();
    assert!(note.starts_with("`--local-addr` is `203.0.113.7`, which no interface"), "{note}");
    assert!(agent.note().ends_with("reach this one at `203.0.113.7`, as `--local-addr` says"));
}
