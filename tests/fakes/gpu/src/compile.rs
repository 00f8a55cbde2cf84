//! Kernels in C: what NVRTC makes of CUDA C++, the system's compiler makes of the part that C has in common with it. Pure, but
//! for the compiler.

use std::ffi::CStr;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};

use rustix::fs::{MemfdFlags, memfd_create};

/// CUDA's names for C.
const PRELUDE: &str = r#"
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
struct fake_dim { unsigned x, y, z; };
static _Thread_local struct fake_dim gridDim, blockDim, blockIdx, threadIdx;
#define __global__ static
#define __device__ static
#define __constant__ const
#define __forceinline__ inline
#define __restrict__ restrict
#define atomicAdd(at, what) (*(at) += (what), *(at) - (what))
#line 1 "default_program"
"#;

/// A kernel of a source.
#[derive(Debug, PartialEq, Eq)]
struct Kernel {
    name: String,
    /// The types of its parameters.
    types: Vec<String>,
}

/// Compiles a source to the shared object that [`crate::launch`] loads.
///
/// # Errors
/// The compiler's log.
pub(crate) fn compile(source: &str) -> Result<Vec<u8>, String> {
    let source = without_comments(source).replace("extern \"C\"", "");
    let kernels = kernels(&source);
    let launchers: String = kernels.iter().map(launcher).collect();
    shared_object(&format!("{PRELUDE}{source}\n#line 1 \"launchers\"\n{launchers}"))
}

/// Starts the compiler; its result never lies in a folder.
fn shared_object(text: &str) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| format!("cannot compile with `cc`: {error}");
    let file = memory_file(c"kernels").map_err(failed)?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    #[expect(clippy::disallowed_methods, reason = "the compiler is a program")]
    let mut compiler = Command::new("cc");
    // The variables are those of the test's program, which may have no `PATH`.
    compiler.args(["-shared", "-fPIC", "-O1", "-std=gnu11", "-x", "c", "-", "-o", &path, "-lm"]).env_clear();
    compiler.env("PATH", "/usr/local/bin:/usr/bin:/bin");
    compiler.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = compiler.spawn().map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(text.as_bytes()).map_err(failed)?;
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        std::fs::read(&path).map_err(failed)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// A file that no folder has.
pub(crate) fn memory_file(name: &CStr) -> std::io::Result<OwnedFd> {
    Ok(memfd_create(name, MemfdFlags::CLOEXEC)?)
}

/// A comment becomes a blank; lines stay lines.
fn without_comments(source: &str) -> String {
    let (mut text, mut rest) = (String::new(), source);
    while let Some(start) = rest.find("//").into_iter().chain(rest.find("/*")).min() {
        let (before, comment) = rest.split_at(start);
        let end = if comment.starts_with("//") {
            comment.find('\n').unwrap_or(comment.len())
        } else {
            comment.find("*/").map_or(comment.len(), |end| end + 2)
        };
        text += before;
        text.extend(comment[..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        rest = &comment[end..];
    }
    text + rest
}

/// The kernels that the source defines; a declaration is none.
fn kernels(source: &str) -> Vec<Kernel> {
    let kernel = |text: &str| {
        let (head, rest) = text.split_once('(')?;
        let (parameters, rest) = rest.split_once(')')?;
        let name = head.split_whitespace().last()?;
        rest.trim_start().starts_with('{').then(|| Kernel {
            name: name.to_owned(),
            types: parameters.split(',').filter_map(type_of).collect(),
        })
    };
    source.split("__global__").skip(1).filter_map(kernel).collect()
}

/// `const float *` of `const float *values`.
fn type_of(parameter: &str) -> Option<String> {
    let parameter = parameter.trim();
    let name = parameter.rfind(|c: char| !(c.is_alphanumeric() || c == '_'))? + 1;
    Some(parameter[..name].trim().to_owned())
}

/// A function with one type for all kernels, and a number with a bit for each argument that is a pointer.
fn launcher(Kernel { name, types }: &Kernel) -> String {
    let arguments: Vec<_> =
        types.iter().enumerate().map(|(at, kind)| format!("*({kind} *)given[{at}]")).collect();
    let arguments = arguments.join(", ");
    let pointers: u64 =
        types.iter().enumerate().filter(|(_, kind)| kind.contains('*')).map(|(at, _)| 1 << at).sum();
    let each = |what: &str, of: &str| {
        let each = |axis| format!("for ({what}.{axis} = 0; {what}.{axis} < {of}.{axis}; {what}.{axis}++) ");
        ["z", "y", "x"].map(each).concat()
    };
    format!(
        "const unsigned long long fake_pointers_{name} = {pointers}ull;\n\
         void fake_launch_{name}(const struct fake_dim *grid, const struct fake_dim *block, void **given) {{\n\
         gridDim = *grid; blockDim = *block;\n{}{}{name}({arguments});\n}}\n",
        each("blockIdx", "gridDim"),
        each("threadIdx", "blockDim")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_parsed_with_parameter_types() {
        let source = "// __global__ void none(int a) {}\n__global__ void declared(int a);\n\
                      __global__ void one(float *__restrict__ to, const float* from,\n  long long n) {}\n\
                      __device__ float other(int a) { return a; }\n__global__ void two() { }";
        let found = kernels(&without_comments(source));
        let kernel = |name: &str, types: &[&str]| Kernel {
            name: name.to_owned(),
            types: types.iter().map(|&kind| kind.to_owned()).collect(),
        };
        let types = ["float *__restrict__", "const float*", "long long"];
        assert_eq!(found, [kernel("one", &types), kernel("two", &[])]);
        assert!(launcher(&found[0]).contains("fake_pointers_one = 3ull;"));
    }

    #[test]
    fn removed_comments_keep_line_numbers() {
        assert_eq!(without_comments("a // b\nc /* d\ne */ f"), "a     \nc     \n     f");
    }
}
