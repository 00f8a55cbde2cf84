use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::*;
use crate::shim::script::is_shim;

fn environment(prefix: &OsStr) -> PythonEnvironment {
    let prefix = Path::new(prefix);
    PythonEnvironment {
        python: prefix.join("bin/python"),
        prefix: prefix.to_owned(),
        scripts: prefix.join("bin"),
        packages: prefix.join("lib"),
        installs: BTreeMap::new(),
    }
}

fn texts(prefix: &OsStr) -> Result<ShimTexts, ShimError> {
    let environment = environment(prefix);
    ShimTexts::of(&environment, &Layout::of(&environment))
}

#[test]
fn templates_have_no_unfilled_placeholder() {
    let texts = texts(OsStr::new("/env")).unwrap();
    let scripts = SCRIPTS.iter().map(|script| texts.script(script));
    for text in scripts.chain([texts.hook.clone(), texts.guard.clone()]) {
        let text = String::from_utf8_lossy(&text);
        let placeholder =
            text.split('@').skip(1).find(|part| part.starts_with(|c: char| c.is_ascii_uppercase()));
        assert_eq!(placeholder, None, "{text}");
    }
    let script = |at: usize| String::from_utf8(texts.script(&SCRIPTS[at])).unwrap();
    assert!(script(0).contains("[ -x '/env/lib/_rankrun_shim/torchrun' ]; then\n"), "{}", script(0));
    assert!(script(0).contains("exec '/env/lib/_rankrun_shim/torchrun' \"$@\""), "{}", script(0));
    assert!(script(1).contains("_shim/accelerate' ] && [ \"$1\" = launch ]; then\n"), "{}", script(1));
    assert!(script(4).contains("open(b'/env/bin/ds.rankrun-original'"), "{}", script(4));
    let hook = String::from_utf8_lossy(&texts.hook);
    for line in [
        "    (b'/env/bin/torchrun', b'torch.distributed.run', None),\n",
        "    (b'/env/bin/accelerate', b'accelerate.commands.accelerate_cli', 'launch'),\n",
    ] {
        assert!(hook.contains(line), "{hook}");
    }
}

#[test]
fn guard_is_single_import_line() {
    assert!(GUARD.starts_with("import ") && GUARD.ends_with('\n') && GUARD.is_ascii());
    assert_eq!(GUARD.lines().count(), 1);
}

#[test]
fn guard_knows_end_of_every_script() {
    for script in &SCRIPTS {
        for path in [script.name.to_owned(), format!("bin/{}", script.name)] {
            let end = &path[path.len().saturating_sub(3)..];
            assert!(GUARD.contains(&format!("\"{end}\"")), "{path}");
        }
    }
}

#[test]
fn hook_and_guard_are_ascii_for_any_path() {
    let texts = texts(OsStr::from_bytes(b"/\xc3\xa9 @PYTHON@ \xff")).unwrap();
    assert!(texts.hook.is_ascii() && texts.guard.is_ascii());
    let hook = String::from_utf8(texts.hook).unwrap();
    assert!(hook.contains(r"PREFIX = b'/\xc3\xa9 @PYTHON@ \xff'"), "{hook}");
}

#[test]
fn path_with_quote_or_backslash_is_refused() {
    for prefix in ["/it's", "/back\\slash", "/new\nline"] {
        let error = texts(OsStr::new(prefix)).unwrap_err();
        assert!(matches!(error, ShimError::Unquotable { .. }), "{error}");
    }
}

#[test]
fn shim_original_and_foreign_scripts_are_distinguished() {
    let texts = texts(OsStr::new("/env")).unwrap();
    for script in &SCRIPTS {
        let text = texts.script(script);
        assert!(is_shim(&text) && !script.is_original(&text), "{script:?}");
    }
    let [torchrun, accelerate, _, deepspeed, _] = &SCRIPTS;
    for (script, text, original) in [
        (torchrun, &b"#!/env/bin/python\nfrom torch.distributed.run import main\n"[..], true),
        (torchrun, b"#!/bin/sh\n'''exec' /env/bin/python \"$0\" \"$@\"\n' '''\nfrom torch.distributed.run import main\n", true),
        (torchrun, b"#!/env/bin/python\nload_entry_point('torch', 'console_scripts', 'torchrun')()\n", true),
        (torchrun, b"#!/bin/sh\nexec srun torchrun\n", false),
        (torchrun, b"\x7fELF torch.distributed.run", false),
        (torchrun, b"", false),
        (accelerate, b"#!/env/bin/python\nfrom accelerate.commands.accelerate_cli import main\n", true),
        (accelerate, b"#!/env/bin/python\nfrom torch.distributed.run import main\n", false),
        (deepspeed, b"#!/env/bin/python\n\nfrom deepspeed.launcher.runner import main\n", true),
    ] {
        assert_eq!(script.is_original(text), original, "{}", String::from_utf8_lossy(text));
        assert!(!is_shim(text));
    }
}

#[test]
fn record_round_trips_every_byte() {
    let file = File { bytes: (0..=255).collect(), mode: 0o750 };
    let scripts = [("ds".to_owned(), Some(OriginalScript::from(&file)))].into();
    let record = OriginalFiles { rankrun: "1".to_owned(), scripts };
    let text = serde_json::to_string(&record).unwrap();
    let read: OriginalFiles = serde_json::from_str(&text).unwrap();
    assert_eq!(read.scripts["ds"].as_ref().unwrap().file(), Some(file));
    let forged: OriginalScript = serde_json::from_str(r#"{"mode": 493, "script": "€"}"#).unwrap();
    assert_eq!(forged.file(), None);
}

#[test]
fn hook_of_other_environment_is_rejected() {
    let (here, there) = (texts(OsStr::new("/env")).unwrap(), texts(OsStr::new("/other")).unwrap());
    assert!(here.match_environment_of(&here.hook));
    assert!(!here.match_environment_of(&there.hook));
    assert!(!here.match_environment_of(b""));
}
