//! Exact resource quantities, in the notation of Kubernetes (`500m`, `1.5Gi`, `2e3`).

use std::{
    fmt,
    ops::{Add, Sub},
    str::FromStr,
};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

/// Billionths: the resolution of Kubernetes quantities.
const NANO: i128 = 1_000_000_000;
/// Kubernetes caps quantities at the largest 64-bit integer.
const MAX: i128 = i64::MAX as i128 * NANO;

/// An exact quantity, with the notation in which it is displayed.
///
/// Comparison and arithmetic ignore the notation: `1Gi` equals `1073741824`.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    nano: i128,
    format: Format,
}

/// The family of suffixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// `m`, none, `k`, `M`, `G`, ...
    Decimal,
    /// `Ki`, `Mi`, `Gi`, ...
    Binary,
    /// `e3`, `e6`, ...
    Exponent,
}

/// The text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a quantity: write a number with an optional suffix, such as 500m, 2, 1.5Gi or 20G")]
pub struct ParseError(String);

impl Quantity {
    /// A whole number of units.
    pub const fn units(units: i64) -> Self {
        Self { nano: units as i128 * NANO, format: Format::Decimal }
    }

    /// Thousandths, as in `500m` of a CPU.
    pub const fn milli(milli: i64) -> Self {
        Self { nano: milli as i128 * (NANO / 1000), format: Format::Decimal }
    }

    /// A number of bytes, written with binary suffixes.
    pub const fn bytes(bytes: i64) -> Self {
        Self { nano: bytes as i128 * NANO, format: Format::Binary }
    }

    /// Whole units, rounded up as in Kubernetes.
    pub fn to_units(self) -> i64 {
        self.scaled_up(NANO)
    }

    /// Thousandths, rounded up.
    pub fn to_milli(self) -> i64 {
        self.scaled_up(NANO / 1000)
    }

    /// Billionths, as in CPU usage.
    pub fn to_nano(self) -> i64 {
        self.scaled_up(1)
    }

    /// How many times a positive `part` fits into it.
    pub fn divided_by(self, part: Self) -> u64 {
        let times = self.nano.max(0).checked_div(part.nano.max(0)).unwrap_or(0);
        u64::try_from(times).unwrap_or(u64::MAX)
    }

    /// Whether it is negative.
    pub fn is_negative(self) -> bool {
        self.nano < 0
    }

    fn scaled_up(self, unit: i128) -> i64 {
        let up = self.nano.div_euclid(unit) + i128::from(self.nano.rem_euclid(unit) != 0);
        i64::try_from(up).unwrap_or(if up < 0 { i64::MIN } else { i64::MAX })
    }
}

impl FromStr for Quantity {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        parse(text).ok_or_else(|| ParseError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Quantity> {
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let (format, base, exponent) = scale(suffix)?;
    Some(Quantity { nano: amount(negative, whole, fraction, base, exponent), format })
}

/// The suffix as `base ^ exponent`.
fn scale(suffix: &str) -> Option<(Format, u32, i32)> {
    Some(match suffix {
        "n" => (Format::Decimal, 10, -9),
        "u" => (Format::Decimal, 10, -6),
        "m" => (Format::Decimal, 10, -3),
        "" => (Format::Decimal, 10, 0),
        "k" => (Format::Decimal, 10, 3),
        "M" => (Format::Decimal, 10, 6),
        "G" => (Format::Decimal, 10, 9),
        "T" => (Format::Decimal, 10, 12),
        "P" => (Format::Decimal, 10, 15),
        "E" => (Format::Decimal, 10, 18),
        "Ki" => (Format::Binary, 2, 10),
        "Mi" => (Format::Binary, 2, 20),
        "Gi" => (Format::Binary, 2, 30),
        "Ti" => (Format::Binary, 2, 40),
        "Pi" => (Format::Binary, 2, 50),
        "Ei" => (Format::Binary, 2, 60),
        _ => {
            let digits = suffix.strip_prefix(['e', 'E'])?;
            if digits.is_empty() || !digits.trim_start_matches(['-', '+']).bytes().all(|b| b.is_ascii_digit())
            {
                return None;
            }
            (Format::Exponent, 10, digits.parse::<i32>().ok()?)
        }
    })
}

/// The value in billionths: rounded away from zero and capped, as in Kubernetes.
fn amount(negative: bool, whole: &str, fraction: &str, base: u32, exponent: i32) -> i128 {
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    let sign = if negative { -1 } else { 1 };
    if digits.is_empty() {
        return 0;
    }
    let fraction_digits = i32::try_from(fraction.len()).unwrap_or(i32::MAX);
    // digits * base^exponent * 10^(9 - fraction_digits), first the powers of ten, then the one of two.
    let (ten, two) = if base == 10 { (exponent.saturating_add(9), 0) } else { (9, exponent) };
    let ten = ten.saturating_sub(fraction_digits);
    let magnitude = i32::try_from(digits.len()).unwrap_or(i32::MAX).saturating_add(ten);
    // Far out of range: decided by the number of digits, before anything can overflow.
    if magnitude > 38 {
        return sign * MAX;
    }
    if magnitude < -20 {
        return sign;
    }
    // Digits beyond the 38th cannot matter except that they round up; there is room for 2^60 only up to 18 or so digits,
    // so a binary suffix is multiplied in wide steps with the cap checked at each.
    let mut rest_is_zero = true;
    let mut value: i128 = 0;
    let keep = usize::try_from(magnitude.clamp(0, 38)).unwrap_or(0);
    for (index, digit) in digits.bytes().enumerate() {
        let digit = i128::from(digit - b'0');
        if ten >= 0 || index < keep {
            value = value.saturating_mul(10).saturating_add(digit);
        } else if two > 0 {
            break;
        } else {
            rest_is_zero &= digit == 0;
        }
    }
    if ten >= 0 {
        for _ in 0..ten {
            value = value.saturating_mul(10);
        }
    }
    if two > 0 {
        return sign * binary_amount(digits, ten, two);
    }
    if !rest_is_zero {
        value = value.saturating_add(1);
    }
    sign * value.min(MAX)
}

/// `digits * 10^ten * 2^two`, rounded up and capped, by long multiplication, so that no digit is lost.
fn binary_amount(digits: &str, ten: i32, two: i32) -> i128 {
    // Little-endian decimal digits.
    let mut number: Vec<u8> = digits.bytes().rev().map(|b| b - b'0').collect();
    for _ in 0..two {
        let mut carry = 0;
        for digit in &mut number {
            let doubled = *digit * 2 + carry;
            *digit = doubled % 10;
            carry = doubled / 10;
        }
        if carry > 0 {
            number.push(carry);
        }
    }
    let dropped = usize::try_from(-ten).unwrap_or(0);
    let rounds_up = number.iter().take(dropped).any(|digit| *digit != 0);
    let mut value: i128 = 0;
    for digit in number.iter().skip(dropped).rev() {
        value = value.saturating_mul(10).saturating_add(i128::from(*digit));
        if value > MAX {
            return MAX;
        }
    }
    for _ in 0..ten.max(0) {
        value = value.saturating_mul(10);
    }
    value.saturating_add(i128::from(rounds_up)).min(MAX)
}

impl fmt::Display for Quantity {
    /// The canonical form: the largest suffix that leaves no fraction.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.nano % NANO == 0;
        let small = self.nano.abs() < 1024 * NANO;
        match self.format {
            Format::Binary if whole && !small => binary(f, self.nano / NANO),
            Format::Exponent => decimal(f, self.nano, |power| match power {
                0 => String::new(),
                _ => format!("e{power}"),
            }),
            Format::Binary | Format::Decimal => decimal(f, self.nano, |power| {
                let index = usize::try_from((power + 9) / 3).unwrap_or(0);
                ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][index].to_owned()
            }),
        }
    }
}

fn binary(f: &mut fmt::Formatter<'_>, mut value: i128) -> fmt::Result {
    let mut suffix = "";
    for larger in ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"] {
        if value % 1024 != 0 {
            break;
        }
        value /= 1024;
        suffix = larger;
    }
    write!(f, "{value}{suffix}")
}

fn decimal(f: &mut fmt::Formatter<'_>, nano: i128, suffix: impl Fn(i32) -> String) -> fmt::Result {
    if nano == 0 {
        return f.write_str("0");
    }
    let (mut value, mut power) = (nano, -9);
    while power < 18 && value % 1000 == 0 {
        value /= 1000;
        power += 3;
    }
    write!(f, "{value}{}", suffix(power))
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nano == other.nano
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.nano.cmp(&other.nano)
    }
}

impl Add for Quantity {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { nano: self.nano.saturating_add(other.nano).clamp(-MAX, MAX), format: self.format }
    }
}

impl Sub for Quantity {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { nano: self.nano.saturating_sub(other.nano).clamp(-MAX, MAX), format: self.format }
    }
}

impl From<Quantity> for ApiQuantity {
    fn from(quantity: Quantity) -> Self {
        Self(quantity.to_string())
    }
}

impl TryFrom<&ApiQuantity> for Quantity {
    type Error = ParseError;

    fn try_from(quantity: &ApiQuantity) -> Result<Self, ParseError> {
        quantity.0.parse()
    }
}

impl<'de> serde::Deserialize<'de> for Quantity {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl serde::Serialize for Quantity {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests;
