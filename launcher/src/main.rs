//! argv in, exit code out.

fn main() -> std::process::ExitCode {
    rankrun::main()
}
