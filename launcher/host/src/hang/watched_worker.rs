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
        let mut worker =
            WatchedWorker { fifo, partial: Vec::new(), has_bad_heartbeat: false, recorder: None, page: None };
        for _ in 0..50 {
            writer.write_all(&[b'1'; 4_096]).unwrap();
            assert_eq!(worker.read_heartbeat(), (None, None));
            assert!(worker.partial.len() <= MAX_HEARTBEAT + 1);
        }
        writer.write_all(b"\n8\n").unwrap();
        let (heartbeat, error) = worker.read_heartbeat();
        assert_eq!((heartbeat.map(|it| it.step), error), (Some(8), None));
    }
}
