use std::ffi::OsStr;
use std::os::unix::fs::symlink;

use rankrun_core::spec::fake::example;
use rankrun_core::spec::{CliFlavor, Entrypoint};

use super::*;

fn script() -> LaunchSpec {
    let entrypoint = Entrypoint::Script { python: "/usr/bin/python3".into(), script: "train.py".into() };
    LaunchSpec { entrypoint, ..example() }
}

fn variables(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
}

#[test]
fn folder_of_hook_is_in_cache_of_user() {
    let parent = |pairs: &[(&str, &str)]| {
        let folder = hook_folder(&script(), &variables(pairs))?;
        Some(folder.parent()?.to_string_lossy().into_owned())
    };
    assert_eq!(parent(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/c")]).as_deref(), Some("/c/rankrun"));
    assert_eq!(parent(&[("HOME", "/h"), ("XDG_CACHE_HOME", "")]).as_deref(), Some("/h/.cache/rankrun"));
    for without in [&[][..], &[("HOME", "relative")], &[("HOME", "/a:b")]] {
        assert_eq!(parent(without), None, "{without:?}");
    }
}

#[test]
fn only_python_workers_of_own_name_have_hooks() {
    let home = variables(&[("HOME", "/h")]);
    let has = |spec: &LaunchSpec| hook_folder(spec, &home).is_some();
    let mut spec = script();
    assert!(has(&spec));
    spec.options.no_hooks = true;
    assert!(!has(&spec));
    spec = LaunchSpec { cli_flavor: CliFlavor::Torchrun, ..script() };
    assert!(!has(&spec));
    spec.options.hooks = true;
    assert!(has(&spec));
    for (path, is_python) in [("/opt/bin/python3.12", true), ("/bin/bash", false)] {
        let entrypoint = Entrypoint::Program { path: path.into(), name: "x".into() };
        assert_eq!(has(&LaunchSpec { entrypoint, ..example() }), is_python, "{path}");
    }
}

#[test]
fn python_path_of_user_stays_behind_hook() {
    let path = |pairs: &[(&str, &str)]| python_path(Path::new("/hook"), &variables(pairs));
    assert_eq!(path(&[("PYTHONPATH", "/a:/b")]), OsStr::new("/hook:/a:/b"));
    assert_eq!(path(&[("PYTHONPATH", "")]), OsStr::new("/hook"));
    assert_eq!(path(&[]), OsStr::new("/hook"));
}

#[test]
fn hook_is_written_once_and_refused_where_it_is_foreign() {
    let root = std::env::temp_dir().join(format!("rankrun-hooks-{}", std::process::id()));
    let folder = root.join("cache/rankrun/hooks");
    let file = folder.join(FILE_NAME);
    install_hook(&folder).unwrap();
    let written = fs::metadata(&file).unwrap().modified().unwrap();
    install_hook(&folder).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), written);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    let refusal = || install_hook(&folder).unwrap_err().to_string();
    fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
    assert!(refusal().ends_with("mode 755): it must be 700"), "{}", refusal());
    fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
    // Only root can give a folder away.
    if std::os::unix::fs::chown(&folder, Some(1), None).is_ok() {
        assert!(refusal().contains("(owner 1, mode 700)"), "{}", refusal());
        std::os::unix::fs::chown(&folder, Some(0), None).unwrap();
    }
    // As below a folder with the set-group-ID bit.
    fs::set_permissions(&folder, Permissions::from_mode(0o2700)).unwrap();
    install_hook(&folder).unwrap();
    for cut in ["", &SOURCE[..100]] {
        fs::write(&file, cut).unwrap();
        install_hook(&folder).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), SOURCE);
    }
    for (above, mode, is_safe) in
        [("cache/rankrun", 0o770, false), ("cache", 0o777, false), ("cache", 0o1777, true)]
    {
        let above = root.join(above);
        fs::set_permissions(&above, Permissions::from_mode(mode)).unwrap();
        let refused = install_hook(&folder).map_err(|error| error.to_string());
        assert_eq!(refused.is_ok(), is_safe, "{refused:?}");
        assert!(is_safe || refused.unwrap_err().contains("can be changed by other users"));
        fs::set_permissions(&above, Permissions::from_mode(0o700)).unwrap();
    }
    fs::write(&file, "import os").unwrap();
    assert!(refusal().ends_with("is not the file of this launcher: remove it"), "{}", refusal());
    fs::remove_file(&file).unwrap();
    symlink("/etc/passwd", &file).unwrap();
    assert!(refusal().starts_with("cannot read"), "{}", refusal());
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert!(refusal().contains("a folder is not a regular file"), "{}", refusal());
    fs::remove_dir_all(&root).unwrap();
}
