//! The search for NCCL, and its errors about other files.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::place::{Folder, fake, library_vars, run_scene};

const WHEEL: &str = "lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2";

/// What a process says that sees `folder`, and in which `name` is `value`.
fn load(folder: &Folder, vars: Vec<(&'static str, OsString)>) -> String {
    let mut all = library_vars(&folder.0.join("loader"), "");
    all.retain(|(name, _)| vars.iter().all(|(own, _)| own != name));
    all.extend(vars);
    run_scene("load", all)
}

fn found(folder: &Folder, name: &str, vars: Vec<(&'static str, OsString)>) {
    let output = load(folder, vars);
    assert_eq!(output, format!("NCCL 2.30.7 from {}", folder.0.join(name).display()));
}

#[test]
fn library_search_order_is_variable_loader_wheels() {
    let folder = Folder::new();
    folder.link(&format!("venv/{WHEEL}")).link(&format!("conda/{WHEEL}")).link(&format!("python/{WHEEL}"));
    fs::create_dir_all(folder.0.join("python/bin")).unwrap();
    let python = folder.write("python/bin/python3", b"#!/bin/false\n");
    fs::set_permissions(python, fs::Permissions::from_mode(0o755)).unwrap();
    let path = || ("PATH", folder.path("python/bin"));
    let conda = || ("CONDA_PREFIX", folder.path("conda"));
    let venv = || ("VIRTUAL_ENV", folder.path("venv"));
    found(&folder, &format!("python/{WHEEL}"), vec![path()]);
    found(&folder, &format!("conda/{WHEEL}"), vec![path(), conda()]);
    found(&folder, &format!("venv/{WHEEL}"), vec![path(), conda(), venv()]);
    folder.link("loader/libnccl.so.2");
    found(&folder, "loader/libnccl.so.2", vec![path(), conda(), venv()]);
    folder.link("named/mine.so");
    found(&folder, "named/mine.so", vec![path(), ("RANKRUN_NCCL", folder.path("named/mine.so"))]);
}

#[test]
fn inactive_virtualenv_python_is_searched() {
    let folder = Folder::new();
    // The environment has the wheel, the installation behind it has not.
    folder.link(&format!("venv/{WHEEL}")).write("real/bin/python3.11", b"");
    let real = folder.0.join("real/bin/python3.11");
    fs::set_permissions(&real, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir_all(folder.0.join("venv/bin")).unwrap();
    symlink(&real, folder.0.join("venv/bin/python")).unwrap();
    found(&folder, &format!("venv/{WHEEL}"), vec![("PATH", folder.path("venv/bin"))]);
    // And the other way round: what only the real installation has is found too.
    fs::remove_file(folder.0.join("venv").join(WHEEL)).unwrap();
    folder.link(&format!("real/{WHEEL}"));
    found(&folder, &format!("real/{WHEEL}"), vec![("PATH", folder.path("venv/bin"))]);
}

#[test]
fn missing_library_lists_searched_places() {
    let folder = Folder::new();
    fs::create_dir_all(folder.0.join("venv/lib/python3.11/site-packages")).unwrap();
    let output = load(&folder, vec![("VIRTUAL_ENV", folder.path("venv"))]);
    let venv = folder.0.join("venv");
    let expected = format!(
        "NCCL cannot be loaded; searched:\n  \
         `libnccl.so.2`: libnccl.so.2: cannot open shared object file: No such file or directory\n  \
         `libnccl.so`: libnccl.so: cannot open shared object file: No such file or directory\n  \
         `{} (VIRTUAL_ENV)`: no wheel `nvidia-nccl-*` is installed there\n\
         install NCCL (`pip install nvidia-nccl-cu13`), or name its file with `--nccl-lib` or RANKRUN_NCCL",
        venv.display()
    );
    assert_eq!(output, expected);
}

/// What is said of a file that is named.
fn refusal(folder: &Folder, name: &str) -> String {
    let output = load(folder, vec![("RANKRUN_NCCL", folder.path(name))]);
    let file = folder.0.join(name);
    let expected = format!("  `{} (named by RANKRUN_NCCL)`: ", file.display());
    let line = output.lines().find_map(|line| line.strip_prefix(&expected));
    line.unwrap_or_else(|| panic!("said {output}")).to_owned()
}

#[test]
fn named_file_not_nccl_is_refused_without_fallback() {
    let folder = Folder::new();
    folder.link("loader/libnccl.so.2");
    assert_eq!(refusal(&folder, "nowhere"), "there is no such file");
    assert_eq!(refusal(&folder, "loader"), "not a file");
    nix::unistd::mkfifo(&folder.0.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(refusal(&folder, "pipe"), "not a file");
    folder.write("empty", b"");
    assert!(refusal(&folder, "empty").ends_with("file too short"));
    folder.write("garbage", &b"garbage ".repeat(1000));
    assert!(refusal(&folder, "garbage").ends_with("invalid ELF header"));

    let library = fs::read(fake()).unwrap();
    let mut foreign = library.clone();
    // The machine of an ELF file: s390.
    foreign[18..20].copy_from_slice(&[22, 0]);
    folder.write("foreign", &foreign);
    let error = refusal(&folder, "foreign");
    assert!(error.contains("cannot open shared object file") || error.contains("ELF"), "{error}");

    folder.write("lacking", &without(&library, "ncclAllReduce"));
    let error = refusal(&folder, "lacking");
    assert!(error.starts_with("it has no `ncclAllReduce`, so it is not NCCL: "), "{error}");
    assert!(error.contains("undefined symbol: ncclAllReduce"), "{error}");
}

#[test]
fn functions_of_newer_nccl_are_optional() {
    let folder = Folder::new();
    let library = fs::read(fake()).unwrap();
    folder.write("loader/libnccl.so.2", &without(&library, "ncclGetLastError"));
    found(&folder, "loader/libnccl.so.2", vec![]);
}

#[test]
fn old_nccl_is_named_and_search_continues() {
    let folder = Folder::new();
    folder.link("loader/libnccl.so.2");
    let output = load(&folder, vec![("FAKE_GPU", "version=21703".into())]);
    let old = "  `libnccl.so.2`: NCCL 2.17.3 is too old: 2.18.0 is the oldest supported release";
    assert!(output.lines().any(|line| line == old), "{output}");
    assert!(output.lines().any(|line| line.starts_with("  `libnccl.so`: ")), "{output}");
    let output = load(&folder, vec![("FAKE_GPU", "version=2708".into())]);
    assert!(output.contains("NCCL 2.7.8"), "{output}");
    let output = load(&folder, vec![("FAKE_GPU", "fail=ncclGetVersion:3".into())]);
    assert!(
        output.contains("`ncclGetVersion` failed: an internal error of NCCL (ncclInternalError, 3)"),
        "{output}"
    );
}

/// The library with a function under another name.
fn without(library: &[u8], function: &str) -> Vec<u8> {
    let name = [b"\0", function.as_bytes(), b"\0"].concat();
    let mut library = library.to_vec();
    let places: Vec<_> =
        (0..library.len() - name.len()).filter(|&at| library[at..].starts_with(&name)).collect();
    assert!(!places.is_empty(), "the fake has `{function}`");
    for at in places {
        library[at + 1] = b'N';
    }
    library
}
