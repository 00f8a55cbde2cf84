//! The files that the kernel opens to execute a program (execve(2)): the program, the interpreters of scripts, the loader.
//! The agent's thread waits for a worker's exec, so a file system that hangs must hang elsewhere first.
//!
//! What a program opens by itself is not among them: the exec is over by then. So for `#!/usr/bin/env python` the kernel
//! opens `env` and its loader alone.

use std::iter::successors;
use std::path::{Path, PathBuf};

use super::exec_problem::{self, may_need_unknown_file, needed_file};
use crate::blocking::CallStep;
use crate::blocking::local_disk::is_on_local_disk;

/// A program, five scripts that are interpreters of one another, and the loader of the last interpreter. The kernel
/// follows no more scripts.
const MAX_FILES: usize = 7;

/// Reads the start of each of these files, and returns their paths. The exec itself names any error.
pub(crate) fn read_exec_files(program: &Path, step: &CallStep) -> Vec<PathBuf> {
    step.set(format!("the file system of the program `{}`", program.display()));
    let next = |file: &PathBuf| {
        let needed = needed_file(&exec_problem::head(file)?).map(PathBuf::from)?;
        let (shown, program) = (needed.display(), program.display());
        step.set(format!("the file system of `{shown}`, which the program `{program}` needs"));
        Some(needed)
    };
    successors(Some(program.to_owned()), next).take(MAX_FILES).collect()
}

/// True if the program is on a local disk and needs no other file, or the loader of this launcher alone. No other file is
/// touched.
pub(crate) fn is_local_with_own_loader(program: &Path) -> bool {
    if !is_on_local_disk(program) {
        return false;
    }
    let Some(head) = exec_problem::head(program) else { return true };
    match needed_file(&head) {
        Some(needed) => {
            exec_problem::head(Path::new("/proc/self/exe")).and_then(|own| needed_file(&own)) == Some(needed)
        }
        None => !may_need_unknown_file(&head),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn scripts_and_loader_of_a_program_are_its_files() {
        let folder = std::env::temp_dir().join(format!("rankrun-exec-files-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let files = |program: &Path| read_exec_files(program, &CallStep::default());
        let script = |name: &str, interpreter: &Path| {
            let path = folder.join(name);
            fs::write(&path, format!("#! {} -x\n", interpreter.display())).unwrap();
            path
        };
        let own = std::env::current_exe().unwrap();
        let loader = files(&own);
        assert_eq!((loader.len(), &loader[0]), (2, &own));
        let inner = script("inner", &own);
        let outer = script("outer", &inner);
        assert_eq!(files(&outer), [&[outer.clone(), inner], &loader[..]].concat());
        let endless = script("endless", &folder.join("endless"));
        assert_eq!(files(&endless).len(), MAX_FILES);
        let missing = folder.join("missing");
        assert_eq!(files(&missing), std::slice::from_ref(&missing));
        let of_missing = script("of-missing", &missing);
        assert_eq!(files(&of_missing), [of_missing.clone(), missing]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn script_is_not_a_program_with_own_loader() {
        let folder = Path::new("/dev/shm").join(format!("rankrun-own-loader-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let program = folder.join("program");
        fs::copy("/bin/true", &program).unwrap();
        assert!(is_local_with_own_loader(&program));
        fs::write(&program, "#!/bin/sh\n").unwrap();
        assert!(!is_local_with_own_loader(&program));
        fs::write(&program, "neither of both").unwrap();
        assert!(is_local_with_own_loader(&program));
        fs::remove_dir_all(folder).unwrap();
    }

    /// `e_phoff`, and in an `Elf64_Phdr` the type `PT_INTERP` and `p_offset`: elf(5).
    #[test]
    fn loader_name_beyond_first_page_is_not_own_loader() {
        let folder = Path::new("/dev/shm").join(format!("rankrun-far-loader-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let program = folder.join("program");
        let mut bytes = fs::read("/bin/true").unwrap();
        let table = usize::from(u16::from_le_bytes(bytes[32..34].try_into().unwrap()));
        let header = (table..).step_by(56).find(|at| bytes[*at..at + 4] == [3, 0, 0, 0]).unwrap();
        let end = bytes.len() as u64;
        bytes.extend(b"/elsewhere/ld.so\0");
        bytes[header + 8..header + 16].copy_from_slice(&end.to_le_bytes());
        fs::write(&program, &bytes).unwrap();
        assert!(!is_local_with_own_loader(&program));
        // Without that segment it is a static program.
        bytes[header..header + 4].fill(0);
        fs::write(&program, &bytes).unwrap();
        assert!(is_local_with_own_loader(&program));
        // The table of segments itself lies beyond.
        bytes[32..40].copy_from_slice(&end.to_le_bytes());
        fs::write(&program, &bytes).unwrap();
        assert!(!is_local_with_own_loader(&program));
        fs::remove_dir_all(folder).unwrap();
    }
}
