use super::*;
use std::os::unix::fs::symlink;

/// An empty folder that is gone at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rankrun-error-folder-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn locked_folder(&self, end: &str) -> (PathBuf, Option<File>) {
        let made = self.0.join(format!("torchelastic_{end}"));
        fs::create_dir(&made).unwrap();
        lock_folder(made, end)
    }

    fn dead(&self) -> Vec<PathBuf> {
        find_dead(&self.0).into_iter().map(|folder| folder.path).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn error_folder_unlocked_is_found_dead() {
    let scratch = Scratch::new("lock");
    let (path, lock) = scratch.locked_folder("abcdefg1");
    assert_eq!(path, scratch.0.join("torchelastic_rankrun_abcdefg1"));
    assert_eq!(scratch.dead(), [] as [PathBuf; 0]);
    drop(lock);
    assert_eq!(scratch.dead(), [path]);
}

#[test]
fn error_folder_name_taken_keeps_both_folders() {
    let scratch = Scratch::new("taken");
    let (first, _lock) = scratch.locked_folder("abcdefg1");
    let (second, lock) = scratch.locked_folder("abcdefg1");
    assert_eq!(second, scratch.0.join("torchelastic_abcdefg1"));
    assert!(lock.is_none() && first.is_dir() && second.is_dir());
    assert_eq!(scratch.dead(), [] as [PathBuf; 0]);
}

#[test]
fn entry_of_other_name_or_type_is_not_dead_folder() {
    let scratch = Scratch::new("names");
    for name in
        ["torchelastic_abcdefgh", "torchelastic_rankrun_abcdefghi", "torchelastic_rankrun_abcdef-h", "x"]
    {
        fs::create_dir(scratch.0.join(name)).unwrap();
    }
    fs::write(scratch.0.join("torchelastic_rankrun_file1234"), "").unwrap();
    symlink(scratch.0.join("x"), scratch.0.join("torchelastic_rankrun_link1234")).unwrap();
    assert_eq!(scratch.dead(), [] as [PathBuf; 0]);
}

#[test]
fn symlink_inside_dead_folder_is_not_followed() {
    let scratch = Scratch::new("links");
    let kept = scratch.0.join("kept");
    fs::create_dir(&kept).unwrap();
    fs::write(kept.join("file"), "").unwrap();
    let (path, lock) = scratch.locked_folder("abcdefg1");
    symlink(&kept, path.join("link")).unwrap();
    fs::create_dir_all(path.join("none_x/attempt_0/0")).unwrap();
    drop(lock);
    for folder in find_dead(&scratch.0) {
        folder.remove().unwrap();
    }
    assert!(!path.exists() && kept.join("file").exists());
}
