use super::*;
use rankrun_contract::rank::{Generation, JobId, LocalWorldSize};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::net::UnixListener;

const LIMITS: Limits = Limits {
    hang_timeout: Some(Duration::from_millis(600)),
    first_step: Duration::ZERO,
    has_other_nodes: false,
};

/// A watch of this many workers, and the folder's paths.
fn watch(job: &str, workers: u32, limits: Limits) -> (ProgressWatch, Vec<PathBuf>, Vec<PathBuf>) {
    let job = JobId(format!("{}{job}", std::process::id()));
    let workers = LocalWorldSize::new(workers).unwrap();
    let channels = ProgressChannels::open(&[], (&job, Generation(0)), workers).unwrap();
    let ranks = (0..workers.get()).map(LocalRank);
    let fifos = ranks.clone().map(|rank| channels.files(rank, false).heartbeat).collect();
    let sockets = ranks.map(|rank| channels.recorder_path(rank)).collect();
    (ProgressWatch::start(channels, Rank(4), limits).unwrap(), fifos, sockets)
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
    let (watch, fifos, _) = watch("silence", 2, LIMITS);
    let folder = fifos[0].parent().unwrap().to_owned();
    fifos.iter().for_each(|fifo| drop(write(fifo, b"1\n2\n")));
    let ProgressReport::Judged(Verdict::Hang(hang)) = next_report(&watch) else { panic!("no hang") };
    assert_eq!(hang.silent.iter().map(|status| status.rank).collect::<Vec<_>>(), [Rank(4), Rank(5)]);
    drop(watch);
    assert!(!folder.exists());
}

#[test]
fn first_bad_heartbeat_of_rank_is_reported_once() {
    let (watch, fifos, _) = watch("garbage", 1, LIMITS);
    let mut fifo = write(&fifos[0], b"\xff\xff\nnonsense\n");
    let ProgressReport::BadHeartbeat { rank, .. } = next_report(&watch) else { panic!("no bad heartbeat") };
    assert_eq!(rank, Rank(4));
    fifo.write_all(b"nonsense\n7\n").unwrap();
    assert!(matches!(next_report(&watch), ProgressReport::Judged(Verdict::Hang(_))));
}

#[test]
fn flood_without_newline_keeps_little_memory() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let fifo = File::from(std::os::fd::OwnedFd::from(reader));
    let mut worker = WatchedWorker { fifo, partial: Vec::new(), has_bad_heartbeat: false, recorder: None };
    for _ in 0..50 {
        writer.write_all(&[b'1'; 4_096]).unwrap();
        assert_eq!(worker.read_heartbeat(), (None, None));
        assert!(worker.partial.len() <= MAX_HEARTBEAT + 1);
    }
    writer.write_all(b"\n8\n").unwrap();
    let (heartbeat, error) = worker.read_heartbeat();
    assert_eq!((heartbeat.map(|it| it.step), error), (Some(8), None));
}

#[test]
fn suspended_job_is_not_judged() {
    let (watch, fifos, _) = watch("suspended", 1, LIMITS);
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
    let (watch, fifos, sockets) = watch("recorder", 2, LIMITS);
    let _silent = UnixListener::bind(&sockets[1]).unwrap();
    drop(write(&fifos[0], b"1\n"));
    assert!(matches!(next_report(&watch), ProgressReport::Judged(Verdict::Hang(_))));
}
