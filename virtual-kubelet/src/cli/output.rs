//! Writing to standard output and standard error.

use std::io::{self, ErrorKind, Write};

use anyhow::Context;

/// Writes text to standard output. A closed pipe is not an error.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("write to standard output"),
    }
}

/// Writes one line to standard error: `error: ...` or `warning: ...`.
pub(super) fn print_diagnostic(level: &str, message: &str) {
    let line = format!("{level}: {}\n", one_line(message));
    // Nothing can be done if standard error is closed.
    drop(io::stderr().lock().write_all(line.as_bytes()));
}

fn one_line(message: &str) -> String {
    message.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The warnings about flags that were given and have no effect: name, value, and why.
pub(super) fn obsolete_flags<const N: usize>(flags: [(&str, &Option<String>, &str); N]) -> Vec<String> {
    let given = flags.into_iter().filter(|(_, value, _)| value.is_some());
    given.map(|(name, _, why)| format!("--{name} does nothing: {why}")).collect()
}

/// Formats a table with aligned columns.
pub(super) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .chain([head[column].len()])
            .max()
            .unwrap_or_default()
    };
    let line = |cells: [&str; N]| {
        let mut text = String::new();
        for (column, cell) in cells.iter().enumerate() {
            text.push_str(cell);
            text.push_str(&" ".repeat(width(column).saturating_sub(cell.chars().count()) + 2));
        }
        text.trim_end().to_owned() + "\n"
    };
    let body = rows.iter().map(|row| line(row.each_ref().map(String::as_str)));
    [line(head)].into_iter().chain(body).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [["mock".into(), "in memory".into()], ["kubernetes".into(), "x".into()]];
        assert_eq!(
            table(["NAME", "WHAT"], &rows),
            "NAME        WHAT\nmock        in memory\nkubernetes  x\n"
        );
    }

    #[test]
    fn messages_are_one_line() {
        assert_eq!(one_line("a\n\n  b\n"), "a b");
    }
}
