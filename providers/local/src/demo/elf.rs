//! Detects statically linked ELF programs.

/// The type of the program header that names a loader (PT_INTERP).
const INTERPRETER: u32 = 3;

/// Whether this is an ELF program that names no loader. False for anything that cannot be parsed.
pub(super) fn is_static(program: &[u8]) -> bool {
    headers(program).is_some_and(|kinds| !kinds.contains(&INTERPRETER))
}

/// The types of all program headers.
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
    // Offset of the program header table, size of an entry, and number of entries.
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
