//! The rules for words, held by a counter: names with several meanings, comments and messages that hide the component
//! which acts, empty doc lines, long names of tests, and citations that lead nowhere.
//!
//! It reads the checkout as text. [`limits`] keeps what each room still has; the numbers may only fall.

pub mod checkout;
pub mod citations;
pub mod count;
pub mod documents;
pub mod items;
pub mod limits;
pub mod names;
pub mod source;
mod titles;

use std::path::Path;
use std::{fs, io};

use limits::Limits;

/// Where the limits are, below the root.
pub const LIMITS: &str = "tests/text/limits.txt";

/// What the checkout has today, beside its limits.
#[derive(Debug)]
pub struct Verdict {
    /// What is counted.
    pub count: count::Count,
    /// The limits that would fit today.
    pub today: Limits,
    /// Where the file differs from them.
    pub differences: Vec<String>,
    /// The table for people.
    pub table: String,
}

/// Counts, and compares with the file.
///
/// # Errors
/// The limits cannot be read.
pub fn judge(root: &Path) -> Result<Verdict, String> {
    let text = fs::read_to_string(root.join(LIMITS))
        .or_else(absent_is_empty)
        .map_err(|why| format!("{LIMITS}: {why}"))?;
    let before = limits::parse(&text)?;
    let files = checkout::rust_files(root);
    let count = count::Count::of(&files);
    let broken = documents::broken_citations(root, &files);
    let today = limits::current_limits(&count, &broken, &before);
    let differences = limits::differences(&before, &today);
    let table = limits::table(&count, broken.len());
    Ok(Verdict { count, today, differences, table })
}

fn absent_is_empty(error: io::Error) -> io::Result<String> {
    if error.kind() == io::ErrorKind::NotFound { Ok(String::new()) } else { Err(error) }
}
