//! `cargo run -p text-rules [-- PART-OF-A-PATH]`: prints the counter's table, and the lines that count below the path.
//! With `RANKRUN_UPDATE=1` it rewrites the limits.
#![expect(clippy::disallowed_methods, reason = "a program of the checkout is told by its environment")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a table for people")]

use std::process::ExitCode;
use std::{env, fs};

use text_rules::{LIMITS, checkout, judge, limits};

fn main() -> ExitCode {
    let root = checkout::root();
    let verdict = match judge(&root) {
        Ok(verdict) => verdict,
        Err(why) => {
            eprintln!("error: {why}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(part) = env::args().nth(1) {
        for finding in verdict.count.findings.iter().filter(|finding| finding.contains(&part)) {
            println!("{finding}");
        }
        return ExitCode::SUCCESS;
    }
    print!("{}", verdict.table);
    for difference in &verdict.differences {
        println!("{difference}");
    }
    if env::var_os("RANKRUN_UPDATE").is_some_and(|value| value == "1") {
        if let Err(why) = fs::write(root.join(LIMITS), limits::written(&verdict.today)) {
            eprintln!("error: {LIMITS}: {why}");
            return ExitCode::FAILURE;
        }
        println!("{LIMITS} is rewritten");
        return ExitCode::SUCCESS;
    }
    if verdict.differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
