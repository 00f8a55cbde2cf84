//! What one worker shows of its progress: the FIFO of its heartbeats, its recorder and its page.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use rankrun_contract::rank::LocalRank;

use super::channels::ProgressChannels;
use rankrun_core::hang::heartbeat::{Heartbeat, HeartbeatError, MAX_HEARTBEAT};

const READ_SIZE: usize = 64 << 10;
/// The lines of one read that are parsed, from the last one back.
const MAX_LINES: usize = 16;

#[derive(Debug)]
pub(super) struct WatchedWorker {
    pub(super) fifo: Arc<File>,
    /// The start of a line whose end has not come.
    partial: Vec<u8>,
    pub(super) has_bad_heartbeat: bool,
    pub(super) recorder: Option<PathBuf>,
    pub(super) page: Option<Arc<File>>,
    /// Whether its PyTorch has a recorder, by the answers so far.
    pub(super) recorder_state: RecorderState,
}

/// What the handlers of a worker's control plane have said of its recorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecorderState {
    Unknown,
    /// One answer listed none. A worker that ends takes its handlers away before.
    ListedNone,
    Listed,
}

impl RecorderState {
    /// True if this is the second answer without a recorder, and there was none with one.
    pub(super) fn record(&mut self, has_recorder: bool) -> bool {
        let is_certain = *self == Self::ListedNone && !has_recorder;
        *self = match (*self, has_recorder) {
            (Self::Listed, _) | (_, true) => Self::Listed,
            (Self::Unknown | Self::ListedNone, false) => Self::ListedNone,
        };
        is_certain
    }
}

impl WatchedWorker {
    pub(super) fn of_channels(channels: &ProgressChannels) -> Vec<Self> {
        let mut pages = channels.pages.iter().cloned();
        let worker = |(fifo, local): (&Arc<File>, u32)| Self {
            fifo: Arc::clone(fifo),
            partial: Vec::new(),
            has_bad_heartbeat: false,
            recorder: channels.recorder_path(LocalRank(local)),
            page: pages.next(),
            recorder_state: RecorderState::Unknown,
        };
        channels.fifos.iter().zip(0..).map(worker).collect()
    }

    /// The last heartbeat that has come, and the error of a bad one.
    pub(super) fn read_heartbeat(&mut self) -> (Option<Heartbeat>, Option<HeartbeatError>) {
        let mut chunk = vec![0; READ_SIZE];
        let Ok(length) = self.fifo.as_ref().read(&mut chunk) else { return (None, None) };
        self.partial.extend_from_slice(&chunk[..length]);
        let Some(end) = memchr::memrchr(b'\n', &self.partial) else {
            self.partial.truncate(MAX_HEARTBEAT + 1);
            return (None, None);
        };
        let rest = self.partial.split_off(end + 1);
        let lines = std::mem::replace(&mut self.partial, rest);
        self.partial.truncate(MAX_HEARTBEAT + 1);
        let mut error = None;
        for line in lines[..end].rsplit(|byte| *byte == b'\n').take(MAX_LINES) {
            match Heartbeat::parse(line) {
                Ok(heartbeat) => return (Some(heartbeat), error),
                Err(bad) => error = Some(bad),
            }
        }
        (None, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn flood_without_newline_keeps_little_memory() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let fifo = Arc::new(File::from(std::os::fd::OwnedFd::from(reader)));
        let mut worker = WatchedWorker {
            fifo,
            partial: Vec::new(),
            has_bad_heartbeat: false,
            recorder: None,
            page: None,
            recorder_state: RecorderState::Unknown,
        };
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
    fn recorder_is_missing_after_two_answers_and_never_where_there_was_one() {
        let certain = |answers: &[bool]| {
            let mut state = RecorderState::Unknown;
            answers.iter().map(|has_recorder| state.record(*has_recorder)).collect::<Vec<_>>()
        };
        assert_eq!(certain(&[false, false]), [false, true]);
        assert_eq!(certain(&[true, false, false, false]), [false; 4]);
        assert_eq!(certain(&[false, true, false, false]), [false; 4]);
    }
}
