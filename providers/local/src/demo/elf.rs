//! Whether a program needs others to be loaded with it.

/// The kind of a program header that names a loader.
const INTERPRETER: u32 = 3;

/// Whether the program runs alone: one of ELF that names no loader. What cannot be read does not.
pub(super) fn is_static(program: &[u8]) -> bool {
    headers(program).is_some_and(|kinds| !kinds.contains(&INTERPRETER))
}

/// The kinds of all program headers.
fn headers(program: &[u8]) -> Option<Vec<u32>> {
    if program.get(..4)? != b"\x7fELF" {
        return None;
    }
    let wide = program.get(4)? == &2;
    let little = program.get(5)? == &1;
    let number = |at: usize, size: usize| -> Option<usize> {
        let bytes = program.get(at..at.checked_add(size)?)?;
        let digits: Vec<u8> = if little { bytes.iter().rev().copied().collect() } else { bytes.to_vec() };
        usize::try_from(digits.iter().fold(0_u64, |sum, digit| (sum << 8) | u64::from(*digit))).ok()
    };
    // Where the table of program headers is, how long an entry is, and how many there are.
    let (table, size, count) = if wide {
        (number(0x20, 8)?, number(0x36, 2)?, number(0x38, 2)?)
    } else {
        (number(0x1c, 4)?, number(0x2a, 2)?, number(0x2c, 2)?)
    };
    (0..count)
        .map(|index| {
            let at = table.checked_add(index.checked_mul(size)?)?;
            u32::try_from(number(at, 4)?).ok()
        })
        .collect()
}
