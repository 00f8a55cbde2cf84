//! Reads the dump files that PyTorch's flight recorders have left in the folder of a generation. A worker may have written
//! anything there, so size and time are limited.
#![expect(clippy::disallowed_methods, reason = "the deadline is measured here")]

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rankrun_contract::rank::Rank;
use rankrun_core::hang::evidence::Groups;
use rankrun_core::hang::flight_recorder::parse_pickled_trace;
use rankrun_core::hang::pickle::MAX_PICKLE;
use rankrun_core::hang::recorder_dumps::{dump_path, judge_dumps};
use rankrun_core::hang::verdict::Verdict;

use crate::regular_file::ensure_regular;

/// The report waits no longer for all dumps of a node; the rest is left out.
const READ_TIME: Duration = Duration::from_secs(1);

/// The verdict on what these ranks waited in, by their dumps in this folder.
pub(super) fn verdict_of_dumps(attempt: &Path, ranks: &[Rank], has_other_nodes: bool) -> Option<Verdict> {
    let began = Instant::now();
    let mut dumps = Vec::new();
    for rank in ranks {
        let path = dump_path(attempt, *rank);
        if began.elapsed() > READ_TIME {
            tracing::warn!("`{}` and later dumps of flight recorders are not read: no time", path.display());
            break;
        }
        match read_dump(&path) {
            Ok(groups) => dumps.extend(groups.map(|groups| (*rank, groups))),
            Err(error) => {
                tracing::warn!("the dump of the flight recorder `{}` is not read: {error}", path.display())
            }
        }
    }
    judge_dumps(dumps, has_other_nodes, Instant::now())
}

/// The groups in this file, if there is one.
fn read_dump(path: &Path) -> io::Result<Option<Groups>> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW;
    let opened: io::Result<File> = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let metadata = file.metadata()?;
    ensure_regular(&metadata)?;
    let too_long = |length: u64| format!("{length} bytes are more than {MAX_PICKLE}");
    let most = MAX_PICKLE as u64;
    if metadata.len() > most {
        return Err(io::Error::other(too_long(metadata.len())));
    }
    let mut bytes = Vec::new();
    // It may grow meanwhile.
    file.take(most + 1).read_to_end(&mut bytes)?;
    parse_pickled_trace(&bytes).map(Some).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("rankrun-dumps-{}-{name}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        folder
    }

    /// Of a real gloo job, whose rank waits in its fifth collective.
    const DUMP: &[u8] = include_bytes!("../../../core/src/hang/flight_recorder/recorded/missing-0.pickle");

    #[test]
    fn dumps_of_node_give_verdict() {
        let folder = folder("good");
        assert_eq!(verdict_of_dumps(&folder, &[Rank(8), Rank(9)], true), None);
        fs::write(dump_path(&folder, Rank(9)), DUMP).unwrap();
        let Some(Verdict::Hang(hang)) = verdict_of_dumps(&folder, &[Rank(8), Rank(9)], true) else {
            panic!("the rank waits")
        };
        assert_eq!((hang.waits[0].waiting.clone(), hang.waits[0].sequence), ([Rank(9)].into(), 5));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn dump_that_is_large_or_no_data_is_refused() {
        let folder = folder("bad");
        let refusal = |rank: u32| read_dump(&dump_path(&folder, Rank(rank))).unwrap_err().to_string();
        File::create(dump_path(&folder, Rank(0))).unwrap().set_len(1 << 30).unwrap();
        assert_eq!(refusal(0), "1073741824 bytes are more than 16777216");
        fs::write(dump_path(&folder, Rank(1)), b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00lstR.").unwrap();
        assert!(refusal(1).contains("has the opcode GLOBAL at byte 2"), "{}", refusal(1));
        nix::unistd::mkfifo(&dump_path(&folder, Rank(2)), nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(refusal(2).contains("is not a regular file"), "{}", refusal(2));
        std::os::unix::fs::symlink("/etc/passwd", dump_path(&folder, Rank(3))).unwrap();
        refusal(3);
        fs::write(dump_path(&folder, Rank(4)), b"").unwrap();
        refusal(4);
        assert!(read_dump(&dump_path(&folder, Rank(5))).unwrap().is_none());
        assert_eq!(verdict_of_dumps(&folder, &[0, 1, 2, 3, 4, 5].map(Rank), false), None);
        fs::remove_dir_all(folder).unwrap();
    }
}
