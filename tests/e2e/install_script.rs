//! `install.sh` with a release's files made here: what it installs, and what it refuses.

use std::fs;
use std::process::Command;

use harness::{Scratch, checkout};

/// A folder with the files of a release, whose program is a script, and a place to install to.
struct Release {
    scratch: Scratch,
}

/// Makes archive and checksums as `launcher/archive` does.
const MAKE: &str = r#"cd "$0" && top=rankrun-0.9.9-$(uname -m)-linux
    mkdir -p $top/bin $top/share/man/man1 release && mv program $top/bin/rankrun && echo page > $top/share/man/man1/rankrun.1
    tar -czf release/$top.tar.gz $top && cd release && sha256sum *.tar.gz > SHA256SUMS"#;

impl Release {
    fn new() -> Self {
        let release = Self { scratch: Scratch::new() };
        let _ = release.scratch.file("program", "#!/bin/sh\necho rankrun 0.9.9\n", 0o755);
        let (ok, said) = sh(&["-c", MAKE, &release.scratch.at("")], "");
        assert!(ok, "{said}");
        release
    }

    /// Whether the script succeeds, and what it says.
    fn install(&self, path_before: &str) -> (bool, String) {
        let script = format!("{}/install.sh", checkout().display());
        let arguments =
            [&script, "--from", &self.scratch.at("release"), "--prefix", &self.scratch.at("here")];
        sh(&arguments, path_before)
    }

    /// Puts a command in front of the system's.
    fn command(&self, name: &str, text: &str) -> String {
        let _ = self.scratch.folder("commands", 0o755);
        let _ = self.scratch.file(&format!("commands/{name}"), text, 0o755);
        format!("{}:", self.scratch.at("commands"))
    }

    #[track_caller]
    fn assert_refused(&self, path_before: &str, error: &str) {
        let (ok, said) = self.install(path_before);
        assert!(!ok && said.contains(error) && said.contains("\nhint: "), "{said}");
        assert!(!self.scratch.path().join("here").exists(), "{said}");
    }
}

#[expect(clippy::disallowed_methods, reason = "the script is what is tested")]
fn sh(arguments: &[&str], path_before: &str) -> (bool, String) {
    let path = format!("{path_before}{}", std::env::var("PATH").unwrap_or_default());
    let output = Command::new("sh").args(arguments).env("PATH", path).output().expect("there is a shell");
    let said = [&output.stdout[..], &output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn install_script_installs_program_and_man_page() {
    let release = Release::new();
    for _ in 0..2 {
        let (ok, said) = release.install("");
        let bin = release.scratch.at("here/bin");
        assert!(ok && said.starts_with(&format!("rankrun 0.9.9 is in {bin}\n")), "{said}");
        assert!(said.contains(&format!("export PATH=\"{bin}:$PATH\"")), "{said}");
        assert!(sh(&["-c", &format!("{bin}/rankrun")], "").0, "the program runs");
        assert!(release.scratch.path().join("here/share/man/man1/rankrun.1").exists());
    }
}

#[test]
fn install_script_names_whole_path_of_relative_prefix() {
    let release = Release::new();
    let script = "cd \"$0\" && exec sh \"$1\" --from ./release --prefix here";
    let checkout = format!("{}/install.sh", checkout().display());
    let (ok, said) = sh(&["-c", script, &release.scratch.at(""), &checkout], "");
    assert!(ok && said.contains("/here/bin:$PATH\""), "{said}");
    assert!(release.scratch.path().join("here/bin/rankrun").exists());
}

#[test]
fn install_script_refuses_wrong_checksum() {
    let release = Release::new();
    let sums = release.scratch.at("release/SHA256SUMS");
    let wrong = fs::read_to_string(&sums).expect("it is made").replacen(['0', '1', '2', '3'], "4", 1);
    fs::write(&sums, wrong).expect("it is ours");
    release.assert_refused("", "SHA256SUMS says");
}

#[test]
fn install_script_refuses_files_of_no_release() {
    let release = Release::new();
    fs::write(release.scratch.at("release/SHA256SUMS"), "<html>\n").expect("it is ours");
    release.assert_refused("", "does not name one archive");
    fs::remove_file(release.scratch.at("release/SHA256SUMS")).expect("it is ours");
    release.assert_refused("", "there is no ");
}

#[test]
fn install_script_refuses_unsupported_platform() {
    let release = Release::new();
    let path = release.command("uname", "#!/bin/sh\ncase $1 in -s) echo Darwin;; *) echo arm64;; esac\n");
    release.assert_refused(&path, "rankrun runs on Linux, and this system is Darwin");
    let path = release.command("uname", "#!/bin/sh\ncase $1 in -s) echo Linux;; *) echo ppc64le;; esac\n");
    release.assert_refused(&path, "there is no rankrun for ppc64le");
    fs::remove_file(release.scratch.at("commands/uname")).expect("it is ours");
    let path = release.command("ldd", "#!/bin/sh\necho 'musl libc (x86_64)' >&2\nexit 1\n");
    release.assert_refused(&path, "the C library musl");
}

#[test]
fn install_script_names_failed_download() {
    let script = format!("{}/install.sh", checkout().display());
    // A port that is never listened on.
    let (ok, said) = sh(&[&script, "--from", "https://127.0.0.1:1"], "");
    assert!(!ok && said.contains("error: cannot download https://127.0.0.1:1/SHA256SUMS: "), "{said}");
    for (arguments, error) in [
        (&[][..], "is not from a release"),
        (&["--from", "http://127.0.0.1:1"][..], "only https"),
        (&["--prefix"][..], "`--prefix` has no value"),
        (&["--prefix", ""][..], "`--prefix` is empty"),
        (&["--force"][..], "unknown argument `--force`"),
    ] {
        let (ok, said) = sh(&[&[&script[..]], arguments].concat(), "");
        assert!(!ok && said.contains(error), "{said}");
    }
}
