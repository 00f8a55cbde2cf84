//! Converts times to and from the bytes of Python's `datetime` in UTC. Pure.

use crate::rendezvous::state::Timestamp;

const DAYS_BEFORE_1970: i64 = days_before_year(1970);
const MICROS_PER_SECOND: i64 = 1_000_000;
const SECONDS_PER_DAY: i64 = 86_400;
const MICROS_PER_DAY: i64 = SECONDS_PER_DAY * MICROS_PER_SECOND;
/// Python's earliest time, the start of year 1; [`LAST`] is the end of year 9999.
const FIRST: i64 = -DAYS_BEFORE_1970 * MICROS_PER_DAY;
const LAST: i64 = (days_before_year(10_000) - DAYS_BEFORE_1970) * MICROS_PER_DAY - 1;

/// Days before each month in a year that is not a leap year.
const DAYS_BEFORE_MONTH: [i64; 13] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365];

/// Days from the start of year 1 to the start of `year`.
const fn days_before_year(year: i64) -> i64 {
    let past = year - 1;
    past * 365 + past / 4 - past / 100 + past / 400
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// Days before a month of a year; the months are 1 to 13.
fn days_before_month(year: i64, month: i64) -> Option<i64> {
    let before = DAYS_BEFORE_MONTH.get(usize::try_from(month - 1).ok()?)?;
    Some(before + i64::from(month > 2 && is_leap(year)))
}

/// Byte format, high byte first: two bytes of year, one each of month, day, hour, minute and second, three of
/// microseconds.
pub(super) fn parse(bytes: &[u8]) -> Option<Timestamp> {
    let bytes: &[u8; 10] = bytes.try_into().ok()?;
    let [year_high, year_low, month, day, hour, minute, second, micros @ ..] = bytes.map(i64::from);
    let year = year_high << 8 | year_low;
    let micros = micros.into_iter().fold(0, |number, byte| number << 8 | byte);
    let is_valid = (1..=9999).contains(&year)
        && (1..=12).contains(&month)
        && hour < 24
        && minute < 60
        && second < 60
        && micros < MICROS_PER_SECOND;
    if !is_valid {
        return None;
    }
    let before = days_before_month(year, month)?;
    if day < 1 || day > days_before_month(year, month + 1)? - before {
        return None;
    }
    let days = days_before_year(year) + before + day - 1 - DAYS_BEFORE_1970;
    let seconds = days * SECONDS_PER_DAY + hour * 3600 + minute * 60 + second;
    Some(Timestamp(seconds * MICROS_PER_SECOND + micros))
}

/// The inverse of [`parse`]; times outside of Python's range become the nearest valid one.
pub(super) fn render(time: Timestamp) -> [u8; 10] {
    let micros = time.0.clamp(FIRST, LAST) - FIRST;
    let (days, micros) = (micros / MICROS_PER_DAY, micros % MICROS_PER_DAY);
    // The estimate is at most one too high, because leap days are not evenly spread.
    let mut year = days * 400 / days_before_year(401) + 1;
    if days_before_year(year) > days {
        year -= 1;
    } else if days_before_year(year + 1) <= days {
        year += 1;
    }
    let day = days - days_before_year(year);
    let month = (1..=12)
        .rev()
        .find(|month| days_before_month(year, *month).is_some_and(|before| before <= day))
        .unwrap_or(1);
    let day = day - days_before_month(year, month).unwrap_or(0) + 1;
    let (seconds, micros) = (micros / MICROS_PER_SECOND, micros % MICROS_PER_SECOND);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let (micros_high, micros_middle) = (micros >> 16, micros >> 8);
    [year >> 8, year, month, day, hour, minute, second, micros_high, micros_middle, micros]
        .map(|number| number.to_le_bytes()[0])
}
