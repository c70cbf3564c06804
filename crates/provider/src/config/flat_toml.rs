//! The part of TOML that the files of the Go providers use: `Key = value` lines with texts, integers, booleans and lists of them, and
//! comments. Tables are refused. Written by hand, because no crate of the tree reads TOML.

use std::{iter::Peekable, str::Chars};

use serde_json::Value;

/// A key with its value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    /// The number of its line, from 1.
    pub(super) line: usize,
    /// The key.
    pub(super) key: String,
    /// The value.
    pub(super) value: Value,
}

/// Reads all entries. The error begins with the line. It does not repeat values: they may be secret.
pub(super) fn read(text: &str) -> Result<Vec<Entry>, String> {
    let mut reader = Reader { letters: text.chars().peekable(), line: 1 };
    let mut entries: Vec<Entry> = Vec::new();
    while reader.skip_to_entry() {
        let line = reader.line;
        let entry = reader.entry().map_err(|why| format!("line {}: {why}", reader.line))?;
        if let Some(first) = entries.iter().find(|first| first.key == entry.key) {
            return Err(format!(
                "line {line}: `{}` is already in line {}: remove one",
                entry.key, first.line
            ));
        }
        entries.push(entry);
    }
    Ok(entries)
}

struct Reader<'a> {
    letters: Peekable<Chars<'a>>,
    line: usize,
}

// === impl Reader ===

impl Reader<'_> {
    fn next(&mut self) -> Option<char> {
        let letter = self.letters.next();
        if letter == Some('\n') {
            self.line += 1;
        }
        letter
    }

    fn take(&mut self, wanted: char) -> bool {
        let found = self.letters.peek() == Some(&wanted);
        if found {
            self.next();
        }
        found
    }

    fn skip_spaces(&mut self) {
        while self.letters.next_if(|letter| matches!(letter, ' ' | '\t')).is_some() {}
    }

    fn skip_comment(&mut self) {
        if self.letters.peek() == Some(&'#') {
            while self.letters.next_if(|letter| *letter != '\n').is_some() {}
        }
    }

    /// Skips blanks, comments and line ends. Returns whether there is more.
    fn skip_to_entry(&mut self) -> bool {
        loop {
            self.skip_spaces();
            self.skip_comment();
            match self.letters.peek() {
                Some('\n' | '\r' | '\u{feff}') => self.next(),
                more => return more.is_some(),
            };
        }
    }

    fn entry(&mut self) -> Result<Entry, String> {
        let line = self.line;
        if self.letters.peek() == Some(&'[') {
            return Err("tables are not supported: write `Key = value` lines".to_owned());
        }
        let key = self.key()?;
        self.skip_spaces();
        if self.letters.peek() == Some(&'.') {
            return Err(format!("`{key}.` begins a key with dots, which is not supported"));
        }
        if !self.take('=') {
            return Err(format!("expected `=` after `{key}`"));
        }
        self.skip_spaces();
        let value = self.value().map_err(|why| format!("{key}: {why}"))?;
        self.skip_spaces();
        self.skip_comment();
        self.take('\r');
        match self.letters.peek() {
            None | Some('\n') => Ok(Entry { line, key, value }),
            Some(_) => {
                Err(format!("{key}: more text after the value: remove it, or put the value in quotes"))
            }
        }
    }

    fn key(&mut self) -> Result<String, String> {
        if matches!(self.letters.peek(), Some('"' | '\'')) {
            return self.quoted();
        }
        let mut key = String::new();
        while let Some(letter) =
            self.letters.next_if(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-'))
        {
            key.push(letter);
        }
        if key.is_empty() { Err("expected `Key = value`".to_owned()) } else { Ok(key) }
    }

    fn value(&mut self) -> Result<Value, String> {
        match self.letters.peek() {
            Some('"' | '\'') => self.quoted().map(Value::from),
            Some('[') => self.list(),
            Some('{') => Err("tables are not supported".to_owned()),
            _ => self.bare(),
        }
    }

    /// A list; it may span several lines.
    fn list(&mut self) -> Result<Value, String> {
        self.next();
        let mut items = Vec::new();
        loop {
            if !self.skip_to_entry() {
                return Err("the list has no end: add `]`".to_owned());
            }
            if self.take(']') {
                return Ok(items.into());
            }
            if self.letters.peek() == Some(&'[') {
                return Err("lists in lists are not supported".to_owned());
            }
            items.push(self.value()?);
            if self.skip_to_entry() && !self.take(',') && self.letters.peek() != Some(&']') {
                return Err("expected `,` or `]` after an item of the list".to_owned());
            }
        }
    }

    /// An integer or a boolean.
    fn bare(&mut self) -> Result<Value, String> {
        let mut text = String::new();
        while let Some(letter) = self
            .letters
            .next_if(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '+' | '.' | ':'))
        {
            text.push(letter);
        }
        match text.as_str() {
            "true" => return Ok(true.into()),
            "false" => return Ok(false.into()),
            "" => return Err("the value is missing".to_owned()),
            _ => {}
        }
        let misplaced = text.starts_with('_') || text.ends_with('_') || text.contains("__");
        let number = text.replace('_', "").parse::<i64>().ok().filter(|_| !misplaced);
        number.map(Value::from).ok_or_else(|| "is not an integer; write text in quotes".to_owned())
    }

    /// Text in double quotes, with escapes, or in single quotes, without. On one line.
    fn quoted(&mut self) -> Result<String, String> {
        let quote = self.next().unwrap_or_default();
        let mut text = String::new();
        loop {
            match self.letters.peek() {
                None | Some('\n') => return Err("the text has no closing quote on its line".to_owned()),
                Some(letter) if *letter == quote => {
                    self.next();
                    if text.is_empty() && self.letters.peek() == Some(&quote) {
                        return Err("text over several lines is not supported".to_owned());
                    }
                    return Ok(text);
                }
                Some('\\') if quote == '"' => {
                    self.next();
                    text.push(self.escaped()?);
                }
                Some(_) => text.extend(self.next()),
            }
        }
    }

    /// What follows a backslash.
    fn escaped(&mut self) -> Result<char, String> {
        let digits = match self.letters.next_if(|letter| *letter != '\n') {
            Some(letter @ ('"' | '\\')) => return Ok(letter),
            Some('n') => return Ok('\n'),
            Some('t') => return Ok('\t'),
            Some('r') => return Ok('\r'),
            Some('b') => return Ok('\u{8}'),
            Some('f') => return Ok('\u{c}'),
            Some('u') => 4,
            Some('U') => 8,
            _ => return Err("unknown escape: write `\\\\` for a backslash, or use single quotes".to_owned()),
        };
        let code: String = (0..digits).map_while(|_| self.letters.next_if(char::is_ascii_hexdigit)).collect();
        let letter = u32::from_str_radix(&code, 16).ok().filter(|_| code.len() == digits);
        letter.and_then(char::from_u32).ok_or_else(|| {
            format!(
                "`\\{}` needs {digits} hexadecimal digits of a character",
                if digits == 4 { 'u' } else { 'U' }
            )
        })
    }
}

#[cfg(test)]
mod tests;
