//! Parses and prints sizes. Pure.

use std::fmt;
use std::str::FromStr;

/// A size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) usize);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let unit: usize = match &text[digits.len()..] {
            "" => 1,
            "K" | "k" => 1 << 10,
            "M" | "m" => 1 << 20,
            "G" | "g" => 1 << 30,
            _ => return Err("not a size, such as `8`, `512K`, `64M` or `1G`".to_owned()),
        };
        let number = digits.parse::<usize>().map_err(|error| format!("not a size: {error}"))?;
        number
            .checked_mul(unit)
            .filter(|&bytes| bytes <= isize::MAX as usize)
            .map(Self)
            .ok_or_else(|| "too large".to_owned())
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fitting = [(1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];
        match fitting.into_iter().find(|(unit, _)| self.0 > 0 && self.0.is_multiple_of(*unit)) {
            Some((unit, letter)) => write!(f, "{}{letter}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

/// The size after 0: whole elements of every type.
const AFTER_ZERO: usize = 8;

/// The sizes from `min` to `max`, each `factor` times the previous one. After 0 comes [`AFTER_ZERO`].
pub(crate) fn sizes(min: Size, max: Size, factor: u32) -> impl Iterator<Item = usize> {
    let next = move |&size: &usize| {
        let next = if size == 0 { AFTER_ZERO.min(max.0) } else { size.checked_mul(factor as usize)? };
        (next > size && next <= max.0).then_some(next)
    };
    std::iter::successors(Some(min.0), next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_size_parses_unchanged() {
        for (text, bytes) in [("0", 0), ("8", 8), ("1K", 1024), ("64m", 64 << 20), ("2G", 2 << 30)] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
            assert_eq!(Size(bytes).to_string(), text.to_uppercase());
        }
        for text in ["", "K", "1T", "1.5M", "-1", "1 K", "99999999999999G", "18446744073709551615"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_grow_up_to_max() {
        let all = |min, max, factor| sizes(Size(min), Size(max), factor).collect::<Vec<_>>();
        assert_eq!(all(8, 100, 2), [8, 16, 32, 64]);
        assert_eq!(all(8, 8, 4), [8]);
        assert_eq!(all(0, 40, 4), [0, 8, 32]);
        assert_eq!(all(0, 4, 4), [0, 4]);
        assert_eq!(all(0, 0, 4), [0]);
        assert_eq!(all(1 << 62, isize::MAX as usize, 4), [1 << 62]);
    }
}
