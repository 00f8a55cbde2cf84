//! Sizes of memory, as options have them: `512MiB`, `2GiB`.

use std::fmt;

/// The units, the largest first. Vendors and users mean powers of two by `GB` as often as not: only these are taken.
const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// `512MiB`, `1.5 GiB`, `4096`: a number, and a unit of powers of two.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
        let (number, unit) = (&text[..end], text[end..].trim_start());
        let factor = match unit {
            "" | "B" => 1,
            unit => UNITS.into_iter().find(|(name, _)| unit.eq_ignore_ascii_case(name))?.1,
        };
        if let Ok(number) = number.parse::<u64>() {
            return number.checked_mul(factor).map(Self);
        }
        let (whole, part) = number.split_once('.')?;
        let is_number = !part.is_empty() && part.len() <= 6 && part.bytes().all(|byte| byte.is_ascii_digit());
        let whole = whole.parse::<u64>().ok().filter(|_| is_number && factor > 1)?.checked_mul(factor)?;
        let scale = 10u64.pow(u32::try_from(part.len()).ok()?);
        let part = u128::from(part.parse::<u64>().ok()?) * u128::from(factor) / u128::from(scale);
        whole.checked_add(u64::try_from(part).ok()?).map(Self)
    }
}

impl fmt::Display for ByteSize {
    /// With at most two decimals, cut.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((unit, size)) = UNITS.into_iter().find(|(_, size)| self.0 >= *size) else {
            return write!(f, "{}B", self.0);
        };
        let hundredths = (u128::from(self.0 % size) * 100 / u128::from(size)) as u64;
        let whole = self.0 / size;
        match (hundredths / 10, hundredths % 10) {
            (0, 0) => write!(f, "{whole}{unit}"),
            (tenths, 0) => write!(f, "{whole}.{tenths}{unit}"),
            _ => write!(f, "{whole}.{hundredths:02}{unit}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_read_and_written_with_units_of_powers_of_two() {
        for (text, bytes, written) in [
            ("1GiB", 1 << 30, "1GiB"),
            (" 512 mib ", 512 << 20, "512MiB"),
            ("1.5GiB", 3 << 29, "1.5GiB"),
            ("4096", 4096, "4KiB"),
            ("1000B", 1000, "1000B"),
            ("0.25KiB", 256, "256B"),
            ("1.25TiB", 5 << 38, "1.25TiB"),
            ("0", 0, "0B"),
        ] {
            assert_eq!(ByteSize::parse(text), Some(ByteSize(bytes)), "`{text}`");
            assert_eq!(ByteSize(bytes).to_string(), written);
        }
        for text in [
            "",
            "GiB",
            "1GB",
            "1G",
            "-1GiB",
            "1.GiB",
            ".5GiB",
            "1.5",
            "1.5B",
            "1e3",
            "1.1234567GiB",
            "17000000TiB",
            "1 2",
        ] {
            assert_eq!(ByteSize::parse(text), None, "`{text}`");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_size_or_none(text in "[0-9.]{0,24} ?([KMGT]iB|B)?|\\PC{0,12}") {
            if let Some(size) = ByteSize::parse(&text) {
                prop_assert!(ByteSize::parse(&size.to_string()).is_some_and(|again| again <= size));
            }
        }
    }
}
