//! Heartbeats: lines that tell the launcher how far the program has come. The launcher gives each worker a FIFO.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The FIFO of this worker, if the launcher watches its progress.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeartbeatSender(Option<Arc<File>>);

impl HeartbeatSender {
    /// Opens the FIFO. A heartbeat that cannot be sent does not fail the program.
    pub(crate) fn open(path: &Path) -> Self {
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let fifo = OpenOptions::new().write(true).custom_flags(flags).open(path).ok();
        let is_fifo = |file: &File| file.metadata().is_ok_and(|metadata| metadata.file_type().is_fifo());
        Self(fifo.filter(is_fifo).map(Arc::new))
    }

    /// The program has finished this step.
    pub(crate) fn send_step(&self, step: u64) {
        self.send(format_args!("{step}\n"));
    }

    /// The program begins a section behind this step.
    pub(crate) fn send_section(&self, step: u64, name: &str, limit: Duration) {
        self.send(format_args!("{step} section={name} limit={}\n", limit.as_secs_f64()));
    }

    /// In one write, which never waits: if the FIFO is full, the launcher has lines enough.
    fn send(&self, line: fmt::Arguments<'_>) {
        if let Some(fifo) = &self.0 {
            let _ = fifo.as_ref().write(line.to_string().as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn heartbeats_are_lines_of_fifo() {
        let path = std::env::temp_dir().join(format!("rankrun-heartbeat-{}", std::process::id()));
        assert!(HeartbeatSender::open(&path).0.is_none(), "no such file");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        let mut launcher = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let sender = HeartbeatSender::open(&path);
        sender.send_step(7);
        sender.send_section(8, "checkpoint", Duration::from_millis(1_500));
        let mut text = [0; 64];
        let length = launcher.read(&mut text).unwrap();
        assert_eq!(std::str::from_utf8(&text[..length]), Ok("7\n8 section=checkpoint limit=1.5\n"));
        (0..20_000).for_each(|step| sender.send_step(step));
        std::fs::remove_file(path).unwrap();
    }
}
