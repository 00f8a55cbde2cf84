//! Files that are torn, damaged or of another program.

use std::os::unix::fs::FileExt;

use proptest::prelude::*;

use super::sharded::{load_parts, save_parts};
use super::*;

#[test]
fn damaged_file_falls_back_to_previous_checkpoint() {
    let folder = Folder::new();
    save(&folder, 1, &[20, 40]);
    let whole = fs::read(folder.main(40)).unwrap();
    let mut files: Vec<Vec<u8>> = (0..whole.len()).map(|length| whole[..length].to_vec()).collect();
    files.push([&whole[..], b"x"].concat());
    for at in 0..whole.len() {
        for bit in [1, 0x20, 0x80] {
            let mut flipped = whole.clone();
            flipped[at] ^= bit;
            files.push(flipped);
        }
    }
    for bytes in files {
        fs::write(folder.main(40), &bytes).unwrap();
        let loaded = load(&folder, 1).unwrap();
        assert_eq!(loaded.step, 20);
        assert_eq!(loaded.refused.len(), 1, "{loaded:?}");
    }
    fs::write(folder.main(40), &whole).unwrap();
    assert_eq!(load(&folder, 1).unwrap().step, 40);
}

#[test]
fn refusal_reason_reaches_every_rank() {
    let folder = Folder::new();
    save(&folder, 1, &[20, 40]);
    let whole = fs::read(folder.main(40)).unwrap();
    let damaged = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let huge = [&u64::MAX.to_le_bytes()[..], &[b' '; 100]].concat();
    let foreign = safetensors::serialize::<&str, safetensors::tensor::TensorView<'_>, _>([], None).unwrap();
    let old = fs::read(folder.main(20)).unwrap();
    let version = b"format\":\"1\"";
    let at = whole.windows(version.len()).position(|bytes| bytes == version).unwrap();
    let mut future = whole.clone();
    future[at + version.len() - 2] = b'2';
    for (bytes, expected) in [
        (whole[..whole.len() - 1].to_vec(), "torn: it has "),
        (Vec::new(), "torn: it has 0 bytes, and should have 8"),
        (damaged(whole.len() - 3), "damaged: its bytes do not match its checksum"),
        (huge, "not a safetensors file: its header would have 18446744073709551615 bytes, of 108 in all"),
        (foreign, "not a checkpoint of rankrun: another program wrote it"),
        (old, "it contains step 20, but its name says another step"),
        (b"\x10\0\0\0\0\0\0\0[[[[[[[[[[[[[[[[".to_vec(), "its header is not that of a safetensors file: "),
        (future, "its format is \"2\""),
    ] {
        fs::write(folder.main(40), &bytes).unwrap();
        let loaded = load(&folder, 3).unwrap();
        assert_eq!(loaded.step, 20);
        let [refused] = &loaded.refused[..] else { panic!("{loaded:?}") };
        assert!(refused.reason.starts_with(expected), "{refused}");
        assert_eq!(refused.path, folder.main(40));
    }
}

/// A file may claim any length, and be as long as it claims without a byte on the disk.
#[test]
fn claimed_file_size_allocates_no_memory() {
    let folder = Folder::new();
    save(&folder, 1, &[20]);
    let sparse = fs::File::create(folder.main(40)).unwrap();
    sparse.set_len(1 << 42).unwrap();
    for claimed in [99_000_000u64, 1 << 41] {
        sparse.write_all_at(&claimed.to_le_bytes(), 0).unwrap();
        assert_eq!(load(&folder, 1).unwrap().refused.len(), 1);
    }
    let json = br#"{"x":{"dtype":"U8","shape":[4398046511000],"data_offsets":[0,4398046511000]},"__metadata__":{"rankrun.format":"1","rankrun.step":"40","rankrun.world_size":"1","rankrun.checksum":"0000000000000000"}}"#;
    sparse.write_all_at(&(json.len() as u64).to_le_bytes(), 0).unwrap();
    sparse.write_all_at(json, 8).unwrap();
    let [refused] = &load(&folder, 1).unwrap().refused[..] else { panic!("one is refused") };
    assert!(refused.reason.starts_with("torn: it has 4398046511104 bytes, and should have "), "{refused}");
}

#[test]
fn no_usable_checkpoint_is_error_with_reasons() {
    let folder = Folder::new();
    fs::write(folder.main(20), "x").unwrap();
    fs::create_dir(folder.main(40)).unwrap();
    for error in run_ranks_in(&[&folder.0, &folder.0], |checkpoints| {
        checkpoints.load_latest(&mut model(&mut weights(0)))
    }) {
        let error = error.unwrap_err();
        let error_text = error.to_string();
        assert!(
            error_text.contains("can be used\n`")
                && error_text.contains("torn: it has 1 bytes, and should have 8"),
            "{error_text}"
        );
        assert!(error_text.contains("step-0000000040.safetensors`: it cannot be read: "), "{error_text}");
        assert_eq!(error.hint(), Some("remove these files to start from the beginning"));
    }
}

/// Nothing waits for a writer, and nothing reads a device without end.
#[test]
fn fifo_or_device_as_checkpoint_is_refused() {
    let folder = Folder::new();
    save(&folder, 1, &[20]);
    let fifo = folder.0.join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let place = folder.main(40);
    let link = |target: &str| std::os::unix::fs::symlink(target, &place).unwrap();
    let kinds: [(&dyn Fn(), &str); 5] = [
        (&|| nix::unistd::mkfifo(&place, nix::sys::stat::Mode::S_IRWXU).unwrap(), "a FIFO (a pipe)"),
        (&|| link(fifo.to_str().unwrap()), "a FIFO (a pipe)"),
        (&|| link("/dev/zero"), "a device"),
        (&|| link("/dev/tty"), "a device"),
        (&|| drop(std::os::unix::net::UnixListener::bind(&place).unwrap()), "a socket"),
    ];
    for (make, kind) in kinds {
        make();
        let loaded = load(&folder, 2).unwrap();
        assert_eq!(loaded.step, 20);
        let [refused] = &loaded.refused[..] else { panic!("{loaded:?}") };
        assert_eq!(refused.reason, format!("it cannot be read: {kind} is not a regular file"));
        fs::remove_file(&place).unwrap();
    }
}

#[test]
fn fifo_as_part_file_is_refused() {
    let folder = Folder::new();
    save_parts(&folder, 2, 20);
    save_parts(&folder, 2, 40);
    let names = folder.names();
    let part =
        names.iter().find(|name| name.starts_with("step-0000000040.") && name.contains("part-1")).unwrap();
    fs::remove_file(folder.0.join(part)).unwrap();
    nix::unistd::mkfifo(&folder.0.join(part), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let loaded = load_parts(&folder, 2);
    assert_eq!(loaded.step, 20);
    assert!(loaded.refused[0].reason.contains("a FIFO (a pipe) is not a regular file"), "{loaded:?}");
}

/// A save puts its own file there.
#[test]
fn save_replaces_fifo() {
    let folder = Folder::new();
    nix::unistd::mkfifo(&folder.main(40), nix::sys::stat::Mode::S_IRWXU).unwrap();
    save(&folder, 1, &[40]);
    assert_eq!(load(&folder, 1).unwrap().step, 40);
}

#[test]
fn fifo_or_device_as_checkpoint_folder_is_refused() {
    let folder = Folder::new();
    let fifo = folder.0.join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for path in [&*fifo, Path::new("/dev/zero")] {
        for result in run_ranks_in(&[path; 2], |_| Ok(())) {
            let error_text = result.unwrap_err().to_string();
            assert!(
                error_text.contains(&format!("the checkpoint folder `{}`", path.display())),
                "{error_text}"
            );
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_checkpoint_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), text in "\\PC{0,200}") {
        header::FileHeader::parse(&bytes).ok();
        header::FileHeader::parse(text.as_bytes()).ok();
        let folder = Folder::new();
        let path = folder.main(1);
        fs::write(&path, &bytes).unwrap();
        prop_assert!(file::OpenFile::open_verified(&path).is_err());
    }
}
