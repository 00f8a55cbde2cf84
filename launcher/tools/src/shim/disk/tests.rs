use super::*;
use crate::shim::layout::{OriginalFiles, OriginalScript};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rankrun-shim-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.at(name), text).unwrap();
        self.at(name)
    }

    fn tree(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![self.0.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(&self.0).unwrap().display().to_string();
                if path.is_symlink() {
                    found.push(format!("{name} -> {}", fs::read_link(&path).unwrap().display()));
                } else if path.is_dir() {
                    folders.push(path);
                } else {
                    found.push(format!("{name}: {}", fs::read_to_string(&path).unwrap()));
                }
            }
        }
        found.sort();
        found
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn change(path: PathBuf, to: Content) -> PathChange {
    PathChange { path, to }
}

fn text(text: &str) -> Content {
    Content::File(File { bytes: text.into(), mode: 0o640 })
}

fn package() -> Content {
    let original = OriginalScript::from(&File { bytes: b"pip".to_vec(), mode: 0o755 });
    let scripts = [("torchrun".to_owned(), Some(original)), ("ds".to_owned(), None)].into();
    let record = OriginalFiles { rankrun: "1".to_owned(), scripts };
    Content::Package(GuardPackage { hook: b"hook".to_vec(), record, rankrun: "/env/bin/rankrun".into() })
}

#[test]
fn apply_makes_all_changes_and_removes_temporary_files() {
    let scratch = Scratch::new("all");
    let torchrun = scratch.file("torchrun", "pip");
    let changes = [
        change(scratch.at("room"), package()),
        change(scratch.at("kept"), Content::SameAs(torchrun.clone())),
        change(torchrun.clone(), text("shim")),
        change(scratch.file("gone", "x"), Content::Nothing),
        change(scratch.at("never"), Content::Nothing),
    ];
    // Twice: existing files are replaced.
    for _ in 0..2 {
        apply(&changes[..1]).unwrap();
    }
    apply(&changes[1..]).unwrap();
    let tree = scratch.tree();
    assert_eq!(tree[0], "kept: pip");
    assert_eq!(tree[1], "room/__init__.py: hook");
    assert_eq!(tree[2], "room/ds -> /env/bin/rankrun");
    assert!(tree[3].starts_with("room/record.json: {"), "{tree:?}");
    assert_eq!(tree[4..], ["room/torchrun -> /env/bin/rankrun", "torchrun: shim"]);
    let mode = |name: &str| fs::metadata(scratch.at(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("torchrun"), mode("room"), mode("room/__init__.py")), (0o640, 0o755, 0o644));
    // The very file comes back.
    let inode = |name: &str| std::os::unix::fs::MetadataExt::ino(&fs::metadata(scratch.at(name)).unwrap());
    let kept = inode("kept");
    let changes = [
        change(torchrun, Content::SameAs(scratch.at("kept"))),
        change(scratch.at("kept"), Content::Nothing),
        change(scratch.at("room"), Content::Nothing),
    ];
    apply(&changes).unwrap();
    assert_eq!((inode("torchrun"), scratch.tree()), (kept, vec!["torchrun: pip".to_owned()]));
}

#[test]
fn apply_changes_nothing_if_staging_fails() {
    let scratch = Scratch::new("stage");
    let torchrun = scratch.file("torchrun", "pip");
    let before = scratch.tree();
    let changes = [
        change(scratch.at("room"), package()),
        change(torchrun, text("shim")),
        change(scratch.at("no such folder/guard"), text("guard")),
    ];
    let error = apply(&changes).unwrap_err();
    assert!(error.to_string().ends_with("guard`; nothing was changed"), "{error}");
    assert_eq!(scratch.tree(), before);
}

#[test]
fn apply_rolls_back_if_commit_fails() {
    let scratch = Scratch::new("commit");
    let torchrun = scratch.file("torchrun", "pip");
    fs::create_dir(scratch.at("folder")).unwrap();
    let guard = scratch.file("folder/guard", "old");
    let before = scratch.tree();
    let changes = [
        change(scratch.at("room"), package()),
        change(scratch.at("kept"), Content::SameAs(torchrun.clone())),
        change(torchrun, text("shim")),
        // With its folder the place of the last change goes away.
        change(scratch.at("folder"), Content::Nothing),
        change(guard, text("new")),
    ];
    let error = apply(&changes).unwrap_err();
    assert!(error.to_string().ends_with("nothing was changed"), "{error}");
    assert_eq!(scratch.tree(), before);
}

#[test]
fn existing_files_are_classified() {
    let scratch = Scratch::new("look");
    let layout =
        Layout { scripts: scratch.0.clone(), guard: scratch.at("guard"), package: scratch.at("room") };
    symlink("nowhere", scratch.at("torchrun")).unwrap();
    fs::create_dir(scratch.at("torchrun.rankrun-original")).unwrap();
    fs::write(scratch.at("guard"), vec![b'x'; LONGEST_SCRIPT + 1]).unwrap();
    let found = read_files(&layout, |_| false).unwrap();
    let torchrun = &found.scripts[0];
    assert_eq!([&torchrun.file, &torchrun.saved_original, &found.guard], [&PathEntry::Other; 3]);
    assert_eq!(
        (&found.hook, &found.record, &torchrun.link),
        (&PathEntry::Missing, &PathEntry::Missing, &None)
    );
    apply(&[change(layout.package.clone(), package())]).unwrap();
    let found = read_files(&layout, |path| path == Path::new("/env/bin/rankrun")).unwrap();
    assert_eq!(found.hook, PathEntry::File(File { bytes: b"hook".to_vec(), mode: 0o644 }));
    let links: Vec<_> = found.scripts.iter().map(|script| script.link.clone()).collect();
    let works = Some(ShimTarget::Works("/env/bin/rankrun".into()));
    assert_eq!(links, [works.clone(), None, None, None, works]);
    let gone = read_files(&layout, |_| false).unwrap().scripts[0].link.clone();
    assert_eq!(gone, Some(ShimTarget::Gone("/env/bin/rankrun".into())));
}
