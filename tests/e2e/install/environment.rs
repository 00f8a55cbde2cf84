//! A Python environment of a test's own, in which rankrun and some torchrun are installed.
#![expect(clippy::disallowed_methods, reason = "the tests start Python and the programs of its environment")]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Scratch, fixture, python};

/// Longer than any call takes on a busy machine.
const LIMIT: &str = "240";

/// Prints the program that has started it, and its Python.
const WORKER: &str = r#"
import os, sys
launcher = "rankrun" if "RANKRUN_JOB" in os.environ else "torch"
left = [name for name in os.environ if name in ("PYTHON_EXEC", "RANKRUN_SHIM_PYTHON")]
print(f"worker of {launcher}: {sys.executable} {sys.argv[1:]} {left}")
"#;

/// A package that stands in for PyTorch's torchrun, and starts in milliseconds.
const FAKE_TORCHRUN: &str = r#"
import os, sys
def main():
    print(f"torch's own: {os.path.basename(sys.argv[0])} {sys.argv[1:]}")
if __name__ == "__main__":
    main()
"#;

/// Stands in for a module of another package with a function `main`.
const FAKE_MAIN: &str = r#"
import os, sys
def main():
    print(f"PACKAGE's own: {os.path.basename(sys.argv[0])} {sys.argv[1:]}")
if __name__ == "__main__":
    main()
"#;

/// Launches in its own process, as accelerate does.
const FAKE_ACCELERATE_LAUNCH: &str = r#"
def main():
    import torch.distributed.run
    torch.distributed.run.main()
if __name__ == "__main__":
    main()
"#;

const FAKE_ACCELERATE: &str = r#"
import os, sys
def main():
    if sys.argv[1:2] == ["launch"]:
        from accelerate.commands.launch import main
        main()
    else:
        print(f"accelerate's own: {os.path.basename(sys.argv[0])} {sys.argv[1:]}")
"#;

/// A virtual environment.
#[derive(Debug)]
pub(crate) struct Environment {
    scratch: Scratch,
    packages: PathBuf,
}

/// The exit code and streams of one command line.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Environment {
    /// An empty one, with these further arguments for `venv`.
    pub(crate) fn empty(further: &[&str]) -> Self {
        let scratch = Scratch::new();
        let prefix = scratch.at("env");
        let status = Command::new(python()).args(["-m", "venv"]).args(further).arg(&prefix).status();
        assert!(status.expect("Python starts").success(), "`venv` fails");
        let lib = Path::new(&prefix).join("lib");
        let version = fs::read_dir(&lib).expect("a venv has a lib").find_map(Result::ok).expect("one Python");
        let _ = scratch.file("worker.py", WORKER, 0o644);
        Self { packages: version.path().join("site-packages"), scratch }
    }

    /// One with a stand-in for PyTorch, its torchrun, and rankrun.
    pub(crate) fn with_fake_torch() -> Self {
        let environment = Self::empty(&["--without-pip"]);
        let torch = environment.packages.join("torch");
        fs::create_dir_all(torch.join("distributed")).expect("the environment is ours");
        fs::write(torch.join("__init__.py"), "").expect("the environment is ours");
        fs::write(torch.join("distributed/__init__.py"), "").expect("the environment is ours");
        fs::write(torch.join("distributed/run.py"), FAKE_TORCHRUN).expect("the environment is ours");
        environment.install_torchrun("");
        environment.install_rankrun();
        environment
    }

    /// Installs stand-ins for accelerate and DeepSpeed, with their scripts as pip writes them.
    pub(crate) fn install_accelerate_and_deepspeed(&self) {
        for (module, text) in [
            ("accelerate/commands/accelerate_cli", FAKE_ACCELERATE.to_owned()),
            ("accelerate/commands/launch", FAKE_ACCELERATE_LAUNCH.to_owned()),
            ("deepspeed/launcher/runner", FAKE_MAIN.replace("PACKAGE", "deepspeed")),
        ] {
            let path = self.packages.join(format!("{module}.py"));
            for folder in path.ancestors().skip(1).take(2) {
                fs::create_dir_all(folder).expect("the environment is ours");
                fs::write(folder.join("__init__.py"), "").expect("the environment is ours");
            }
            fs::write(path, text).expect("the environment is ours");
        }
        self.install_script("accelerate", "accelerate.commands.accelerate_cli", "");
        self.install_script("accelerate-launch", "accelerate.commands.launch", "");
        self.install_script("deepspeed", "deepspeed.launcher.runner", "");
        self.install_script("ds", "deepspeed.launcher.runner", "");
    }

    /// One that finds the real PyTorch, with its torchrun as pip installs it.
    pub(crate) fn with_torch(further: &[&str]) -> Self {
        let environment = Self::empty(further);
        let script = "import sysconfig; print(sysconfig.get_path('purelib'))";
        let output = Command::new(python()).args(["-c", script]).output().expect("Python starts");
        let folder = String::from_utf8(output.stdout).expect("a plain path");
        fs::write(environment.packages.join("torch.pth"), folder).expect("the environment is ours");
        environment.install_torchrun("");
        environment
    }

    /// Links to the launcher under test under our name.
    pub(crate) fn install_rankrun(&self) {
        symlink(fixture("launcher-under-test"), self.bin("rankrun")).expect("the name is free");
    }

    /// Writes `bin/torchrun` as pip does, with a mark.
    pub(crate) fn install_torchrun(&self, mark: &str) {
        self.install_script("torchrun", "torch.distributed.run", mark);
    }

    /// Writes a console script as pip does, with a mark.
    pub(crate) fn install_script(&self, name: &str, module: &str, mark: &str) {
        // As pip: the old file is removed first.
        let _ = fs::remove_file(self.bin(name));
        let lines = [
            format!("#!{}", self.bin("python").display()),
            format!("# -*- coding: utf-8 -*-{mark}"),
            "import re".to_owned(),
            "import sys".to_owned(),
            format!("from {module} import main"),
            "if __name__ == '__main__':".to_owned(),
            r"    sys.argv[0] = re.sub(r'(-script\.pyw|\.exe)?$', '', sys.argv[0])".to_owned(),
            "    sys.exit(main())".to_owned(),
        ];
        let _ = self.scratch.file(&format!("env/bin/{name}"), &(lines.join("\n") + "\n"), 0o755);
        let _ = fs::remove_file(self.bin(&format!("{name}.source")));
    }

    pub(crate) fn prefix(&self) -> String {
        self.scratch.at("env")
    }

    pub(crate) fn bin(&self, name: &str) -> PathBuf {
        self.scratch.path().join("env/bin").join(name)
    }

    pub(crate) fn packages(&self) -> &Path {
        &self.packages
    }

    pub(crate) fn file(&self, name: &str, text: &str, mode: u32) -> String {
        self.scratch.file(name, text, mode)
    }

    /// Runs a line of a shell in the scratch folder, which has `worker.py`; the environment's commands are the
    /// first of `PATH`.
    pub(crate) fn run(&self, line: &str) -> CommandOutput {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", LIMIT, "sh", "-c", line]).current_dir(self.scratch.path());
        command.env_clear().env("PATH", format!("{}:{path}", self.bin("").display()));
        // No name server need answer torch's look-ups.
        command.env("RES_OPTIONS", "timeout:1 attempts:1").env("OMP_NUM_THREADS", "1");
        let output = command.output().expect("`timeout` is installed");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        CommandOutput { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// As [`Environment::run`], and it must succeed; gives its standard output.
    #[track_caller]
    pub(crate) fn out(&self, line: &str) -> String {
        let output = self.run(line);
        assert_eq!(output.code, Some(0), "`{line}`: {output:#?}");
        output.out
    }

    /// Every file where installed things go, with its inode, size and permissions; Python's caches are left out.
    pub(crate) fn files(&self) -> BTreeMap<OsString, (u64, u64, u32)> {
        let folders = [self.bin(""), self.packages.clone(), self.packages.join("_rankrun_shim")];
        let entries = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
        let file = |entry: std::io::Result<fs::DirEntry>| {
            let path = entry.expect("the folder can be read").path();
            let found = fs::symlink_metadata(&path).expect("no program removes it");
            (!found.is_dir()).then(|| (path.into_os_string(), (found.ino(), found.len(), found.mode())))
        };
        entries.filter_map(file).collect()
    }
}
