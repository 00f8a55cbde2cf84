use super::*;
use crate::hang::channels::ChannelKinds;
use rankrun_contract::progress_page::{name_words, slot_flags};
use rankrun_contract::rank::{Generation, LocalWorldSize, NodeRank};
use rankrun_core::hang::heartbeat::Heartbeat;
use rankrun_core::hang::shared::NodeEvidence;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

const LIMITS: Limits = Limits {
    hang_timeout: Some(Duration::from_millis(600)),
    first_step: Duration::ZERO,
    has_other_nodes: false,
};

/// A watch of this many workers, and the folder's paths.
fn watch(workers: u32, limits: Limits) -> (ProgressWatch, Vec<PathBuf>, Vec<PathBuf>) {
    watch_channels(ChannelKinds { has_recorder: true, has_page: true, has_ras: false }, workers, limits)
}

fn watch_channels(
    kinds: ChannelKinds,
    workers: u32,
    limits: Limits,
) -> (ProgressWatch, Vec<PathBuf>, Vec<PathBuf>) {
    let workers = LocalWorldSize::new(workers).unwrap();
    let channels = ProgressChannels::open(None, &[], Generation(0), workers, kinds).unwrap();
    let ranks = (0..workers.get()).map(LocalRank);
    let fifos = ranks.clone().map(|rank| channels.files(rank).heartbeat).collect();
    let sockets = ranks.map(|rank| channels.recorder_path(rank).unwrap()).collect();
    (ProgressWatch::start(channels, Rank(4), limits, Vec::new(), None).unwrap(), fifos, sockets)
}

fn next_report(watch: &ProgressWatch) -> ProgressReport {
    loop {
        poll(&mut [PollFd::new(watch.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE).unwrap();
        if let Some(report) = watch.take_reports().into_iter().next() {
            return report;
        }
    }
}

fn write(path: &PathBuf, text: &[u8]) -> File {
    let mut fifo = OpenOptions::new().write(true).open(path).unwrap();
    fifo.write_all(text).unwrap();
    fifo
}

#[test]
fn silence_after_heartbeats_is_reported_with_ranks_of_job() {
    let (watch, fifos, _) = watch(2, LIMITS);
    let folder = fifos[0].parent().unwrap().to_owned();
    fifos.iter().for_each(|fifo| drop(write(fifo, b"1\n2\n")));
    let ProgressReport::Judged(Verdict::Hang(hang)) = next_report(&watch) else { panic!("no hang") };
    assert_eq!(hang.silent.iter().map(|status| status.rank).collect::<Vec<_>>(), [Rank(4), Rank(5)]);
    drop(watch);
    assert!(!folder.exists());
}

#[test]
fn first_bad_heartbeat_of_rank_is_reported_once() {
    let (watch, fifos, _) = watch(1, LIMITS);
    let mut fifo = write(&fifos[0], b"\xff\xff\nnonsense\n");
    let ProgressReport::BadHeartbeat { rank, .. } = next_report(&watch) else { panic!("no bad heartbeat") };
    assert_eq!(rank, Rank(4));
    fifo.write_all(b"nonsense\n7\n").unwrap();
    assert!(matches!(next_report(&watch), ProgressReport::Judged(Verdict::Hang(_))));
}

#[test]
fn suspended_job_is_not_judged() {
    let (watch, fifos, _) = watch(1, LIMITS);
    watch.suspend();
    drop(write(&fifos[0], b"1\n"));
    thread::sleep(3 * LIMITS.usual());
    assert!(watch.take_reports().is_empty());
    watch.resume(Duration::from_secs(3_600));
    watch.finish_worker(LocalRank(0));
    thread::sleep(LIMITS.usual());
    assert!(watch.take_reports().is_empty());
}

#[test]
fn recorder_that_never_answers_does_not_hide_hang_of_others() {
    let kinds = ChannelKinds { has_recorder: true, has_page: false, has_ras: false };
    let (watch, fifos, sockets) = watch_channels(kinds, 2, LIMITS);
    let _silent = UnixListener::bind(&sockets[1]).unwrap();
    drop(write(&fifos[0], b"1\n"));
    assert!(matches!(next_report(&watch), ProgressReport::Judged(Verdict::Hang(_))));
}

/// A page with one group in the midst of its third collective.
fn page_in_all_reduce() -> Vec<u8> {
    let words = [slot_flags(true), 3, 2, 2].into_iter().chain(name_words("default"));
    words.flat_map(u64::to_ne_bytes).collect()
}

#[test]
fn page_shows_collective_of_rust_worker() {
    let (watch, fifos, _) = watch(2, LIMITS);
    let page = OpenOptions::new().write(true).open(fifos[0].with_extension("page")).unwrap();
    page.write_all_at(&page_in_all_reduce(), 0).unwrap();
    let ProgressReport::Judged(Verdict::Hang(hang)) = next_report(&watch) else { panic!("no hang") };
    let wait = &hang.waits[0];
    assert_eq!((wait.name.as_deref(), wait.sequence), (Some("all_reduce"), 3));
    assert_eq!((&wait.waiting, &wait.missing), (&[Rank(4)].into(), &[Rank(5)].into()));
}

/// A worker can write to its page whatever it likes, and cut or lengthen it.
#[test]
fn page_without_sense_gives_no_verdict() {
    let (watch, fifos, _) = watch(2, LIMITS);
    for (fifo, length) in fifos.iter().zip([3, 1 << 30]) {
        let page = OpenOptions::new().write(true).open(fifo.with_extension("page")).unwrap();
        page.write_all_at(&[0xff; PAGE_BYTES], 0).unwrap();
        page.set_len(length).unwrap();
    }
    thread::sleep(2 * LIMITS.usual());
    assert!(matches!(watch.take_reports()[..], [ProgressReport::NoEvidence]));
}

#[test]
fn hang_is_reported_again_when_blamed_rank_has_ended() {
    let (watch, fifos, _) = watch(2, LIMITS);
    let page = OpenOptions::new().write(true).open(fifos[0].with_extension("page")).unwrap();
    page.write_all_at(&page_in_all_reduce(), 0).unwrap();
    for (finished, blamed) in [(None, Rank(5)), (Some(LocalRank(1)), Rank(4))] {
        finished.into_iter().for_each(|local_rank| watch.finish_worker(local_rank));
        let ProgressReport::Judged(verdict) = next_report(&watch) else { panic!("no verdict") };
        assert_eq!(verdict.blamed_rank(), Some(blamed));
    }
}

/// As the program of a Rust worker that drops its group and computes.
#[test]
fn page_whose_groups_have_ended_shows_no_wait() {
    let (watch, fifos, _) = watch(1, LIMITS);
    let page = OpenOptions::new().write(true).open(fifos[0].with_extension("page")).unwrap();
    page.write_all_at(&page_in_all_reduce(), 0).unwrap();
    thread::sleep(LIMITS.usual() / 2);
    page.write_all_at(&[0; PAGE_BYTES], 0).unwrap();
    assert!(matches!(next_report(&watch), ProgressReport::NoProgressOutsideCollectives));
    thread::sleep(LIMITS.usual());
    assert!(watch.take_reports().is_empty());
}

#[test]
fn progress_after_verdict_clears_it() {
    let (watch, fifos, _) = watch(1, LIMITS);
    let mut fifo = write(&fifos[0], b"1\n");
    assert!(matches!(next_report(&watch), ProgressReport::Judged(Verdict::Hang(_))));
    fifo.write_all(b"2\n").unwrap();
    assert!(matches!(next_report(&watch), ProgressReport::Cleared));
}

#[test]
fn workers_without_any_evidence_are_reported_once() {
    let (watch, fifos, _) = watch(2, LIMITS);
    assert!(matches!(next_report(&watch), ProgressReport::NoEvidence));
    thread::sleep(LIMITS.usual());
    assert!(watch.take_reports().is_empty());
    drop(write(&fifos[0], b"1\n"));
    assert!(matches!(next_report(&watch), ProgressReport::Judged(Verdict::Hang(_))));
}

/// An observer of one worker without channels, whose last heartbeat came so long ago.
fn observer(silent_for: Duration) -> Observer {
    let (now, event) = (Instant::now(), || Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap()));
    let mut rank = RankEvidence::new(Rank(0), now - silent_for);
    rank.record_heartbeat(Heartbeat { step: 1, section: None, limit: None }, now - silent_for);
    Observer {
        ranks: vec![rank],
        workers: Vec::new(),
        ras: None,
        limits: LIMITS,
        board: None,
        commands: channel().1,
        wake: event(),
        reports: channel().0,
        reported: event(),
        last_reported: None,
        reported_once: Vec::new(),
        highest_step: Arc::default(),
        _is_running: channel().0,
        is_suspended: false,
        judge_at: now,
        hot_until: now,
    }
}

/// Without a limit of the user the ranks of another node are known too, once a rank of this node shows something.
#[test]
fn warning_is_of_ranks_of_all_nodes() {
    let silent_for = 3 * Limits { hang_timeout: None, ..LIMITS }.usual();
    let mut observer = observer(silent_for);
    let board = Arc::new(EvidenceBoard::fake(2));
    (observer.limits.hang_timeout, observer.board) = (None, Some(Arc::clone(&board)));
    let now = Instant::now();
    let other = RankEvidence::new(Rank(1), now - silent_for);
    board.receive(NodeRank(1), NodeEvidence::new(3, 1, &[other], now).to_json());
    let silent = std::mem::replace(&mut observer.ranks, vec![RankEvidence::new(Rank(0), now - silent_for)]);
    assert_eq!((observer.judge_all(now), board.published()), (Verdict::NotEnoughEvidence, 0));
    observer.ranks = silent;
    let Verdict::Hang(hang) = observer.judge_all(now) else { panic!("no hang") };
    let ranks: Vec<Rank> = hang.silent.iter().map(|status| status.rank).collect();
    assert_eq!((ranks, hang.has_other_nodes, board.published()), (vec![Rank(0), Rank(1)], false, 1));
}

#[test]
fn time_in_which_the_thread_stood_still_does_not_count() {
    let silent_for = Duration::from_secs(20);
    for (lasted, expected) in
        [(1, Duration::from_secs(20)), (15, Duration::from_secs(5)), (60, Duration::ZERO)]
    {
        let mut observer = observer(silent_for);
        observer
            .discount_frozen_time(Instant::now() - Duration::from_secs(lasted), Duration::from_millis(150));
        let silent = observer.ranks[0].last_progress.elapsed();
        let tolerance = Duration::from_millis(500);
        assert!(silent >= expected && silent < expected + tolerance, "{lasted} s: {silent:?}");
    }
}
