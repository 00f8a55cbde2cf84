//! Numbers as the store keeps them: decimal text, read as C's `strtoll` reads it.

/// Why a value is not a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NumberError {
    /// No digits where they should be.
    #[error("it does not begin with a number")]
    NoDigits,
    /// More than 64 bits.
    #[error("it does not fit in 64 bits")]
    OutOfRange,
}

/// The number at the beginning of `text`: blanks and a sign may precede it, anything may follow it.
pub(super) fn parse(text: &[u8]) -> Result<i64, NumberError> {
    let blanks = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t'..=b'\r')).count();
    let (negative, digits) = match &text[blanks..] {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let length = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if length == 0 {
        return Err(NumberError::NoDigits);
    }
    // Summed up with its sign, since the smallest number has no positive counterpart.
    digits[..length].iter().try_fold(0i64, |number, byte| {
        let digit = i64::from(byte - b'0');
        let shifted = number.checked_mul(10);
        let sum = shifted.and_then(|number| number.checked_add(if negative { -digit } else { digit }));
        sum.ok_or(NumberError::OutOfRange)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_text_is_parsed_like_strtoll() {
        let cases: [(&[u8], i64); 9] = [
            (b"-2", -2),
            (b"12abc", 12),
            (b" +5", 5),
            (b"\x0b7", 7),
            (b"5\x006", 5),
            (b"0x10", 0),
            (b"007", 7),
            (b"9223372036854775807", i64::MAX),
            (b"-9223372036854775808", i64::MIN),
        ];
        for (text, number) in cases {
            assert_eq!(parse(text), Ok(number), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn invalid_number_is_refused() {
        for text in [&b""[..], b"-", b" ", b"\0", b"hello", b"--5", b"- 5"] {
            assert_eq!(parse(text), Err(NumberError::NoDigits), "{}", text.escape_ascii());
        }
        for text in [&b"9223372036854775808"[..], b"-9223372036854775809", b"99999999999999999999"] {
            assert_eq!(parse(text), Err(NumberError::OutOfRange), "{}", text.escape_ascii());
        }
    }
}
