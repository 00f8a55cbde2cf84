use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::*;

fn environment(prefix: &OsStr) -> PythonEnvironment {
    let prefix = Path::new(prefix);
    PythonEnvironment {
        python: prefix.join("bin/python"),
        prefix: prefix.to_owned(),
        scripts: prefix.join("bin"),
        packages: prefix.join("lib"),
        torch: None,
    }
}

fn texts(prefix: &OsStr) -> Result<ShimTexts, ShimError> {
    let environment = environment(prefix);
    ShimTexts::of(&environment, &Layout::of(&environment))
}

#[test]
fn every_name_in_the_templates_is_filled_in() {
    let texts = texts(OsStr::new("/env")).unwrap();
    for text in [&texts.torchrun, &texts.hook, &texts.guard] {
        let text = String::from_utf8_lossy(text);
        let left = text.split('@').skip(1).find(|part| part.starts_with(|c: char| c.is_ascii_uppercase()));
        assert_eq!(left, None, "{text}");
    }
    assert!(
        String::from_utf8_lossy(&texts.torchrun).contains("exec '/env/lib/_rankrun_shim/torchrun' \"$@\"")
    );
    assert!(String::from_utf8_lossy(&texts.hook).contains("TORCHRUN = b'/env/bin/torchrun'\n"));
}

#[test]
fn the_guard_is_one_line_that_python_executes() {
    assert!(GUARD.starts_with("import ") && GUARD.ends_with('\n') && GUARD.is_ascii());
    assert_eq!(GUARD.lines().count(), 1);
}

#[test]
fn what_python_reads_at_its_start_is_ascii_whatever_the_folder_is_called() {
    let texts = texts(OsStr::from_bytes(b"/\xc3\xa9 @PYTHON@ \xff")).unwrap();
    assert!(texts.hook.is_ascii() && texts.guard.is_ascii());
    let hook = String::from_utf8(texts.hook).unwrap();
    assert!(hook.contains(r"PREFIX = b'/\xc3\xa9 @PYTHON@ \xff'"), "{hook}");
}

#[test]
fn a_path_that_would_end_a_quotation_is_refused() {
    for prefix in ["/it's", "/back\\slash", "/new\nline"] {
        let error = texts(OsStr::new(prefix)).unwrap_err();
        assert!(matches!(error, ShimError::Unquotable { .. }), "{error}");
    }
}

#[test]
fn the_scripts_of_installers_are_told_from_ours_and_from_others() {
    let of_shim = texts(OsStr::new("/env")).unwrap().torchrun;
    assert!(is_shim(&of_shim) && !is_original(&of_shim));
    for (script, original) in [
        (&b"#!/env/bin/python\nfrom torch.distributed.run import main\n"[..], true),
        (b"#!/bin/sh\n'''exec' /env/bin/python \"$0\" \"$@\"\n' '''\nfrom torch.distributed.run import main\n", true),
        (b"#!/env/bin/python\nload_entry_point('torch', 'console_scripts', 'torchrun')()\n", true),
        (b"#!/bin/sh\nexec srun torchrun\n", false),
        (b"\x7fELF torch.distributed.run", false),
        (b"", false),
    ] {
        assert_eq!(is_original(script), original, "{}", String::from_utf8_lossy(script));
        assert!(!is_shim(script));
    }
}

#[test]
fn a_record_brings_back_every_byte() {
    let file = File { bytes: (0..=255).collect(), mode: 0o750 };
    let record = OriginalFiles { rankrun: "1".to_owned(), original: Some(OriginalScript::from(&file)) };
    let text = serde_json::to_string(&record).unwrap();
    let read: OriginalFiles = serde_json::from_str(&text).unwrap();
    assert_eq!(read.original.unwrap().file(), Some(file));
    let forged: OriginalScript = serde_json::from_str(r#"{"mode": 493, "script": "€"}"#).unwrap();
    assert_eq!(forged.file(), None);
}

#[test]
fn a_hook_of_another_environment_is_not_of_this_place() {
    let (here, there) = (texts(OsStr::new("/env")).unwrap(), texts(OsStr::new("/other")).unwrap());
    assert!(here.are_of_the_place_of(&here.hook));
    assert!(!here.are_of_the_place_of(&there.hook));
    assert!(!here.are_of_the_place_of(b""));
}
