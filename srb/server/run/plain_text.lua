-- A filter for pandoc: what the page's Markdown has no sign for becomes text. The first two lines of the text are the
-- document's title and the number of pictures that were left out.

local pictures = 0

local function contents(element) return element.content end

local RAISED = { ["0"] = "⁰", ["1"] = "¹", ["2"] = "²", ["3"] = "³", ["4"] = "⁴", ["5"] = "⁵", ["6"] = "⁶", ["7"] = "⁷",
  ["8"] = "⁸", ["9"] = "⁹" }

-- A number that is raised stays raised: plain, the number of a note would become part of the word before it.
local function raised(element)
  local number = pandoc.utils.stringify(element)
  if number:match("^%d+$") then return pandoc.Str((number:gsub("%d", RAISED))) end
  return element.content
end

-- A table as a paragraph for each row.
local function paragraphs(table)
  local rows = pandoc.List(table.head.rows)
  for _, body in ipairs(table.bodies) do
    rows:extend(body.head)
    rows:extend(body.body)
  end
  rows:extend(table.foot.rows)
  return table.caption.long .. rows:map(function(row)
    local line = pandoc.List()
    local cells = row.cells
    while #cells > 0 and #cells[#cells].contents == 0 do cells:remove() end
    for k, cell in ipairs(cells) do
      if k > 1 then line:insert(pandoc.Str(" | ")) end
      line:extend(pandoc.utils.blocks_to_inlines(cell.contents, { pandoc.Space() }))
    end
    return pandoc.Para(line)
  end)
end

local function with_title(doc)
  local front = pandoc.List()
  if doc.meta.from == "docx" then -- there these are paragraphs of the text, with styles of these names
    for _, name in ipairs({ "subtitle", "author", "date", "abstract" }) do
      local value = doc.meta[name]
      if pandoc.utils.type(value) == "List" then
        for _, each in ipairs(value) do front:insert(pandoc.Para(pandoc.utils.stringify(each))) end
      elseif value then
        front:insert(pandoc.Para(pandoc.utils.stringify(value)))
      end
    end
  end
  local title = pandoc.utils.stringify(doc.meta.title or "")
  front:insert(1, pandoc.RawBlock("markdown", title .. "\n" .. pictures))
  front:extend(doc.blocks)
  doc.blocks = front
  return doc
end

return {
  {
    Image = function() pictures = pictures + 1; return {} end,
    Table = paragraphs,
    HorizontalRule = function() return pandoc.RawBlock("markdown", "* * *") end,
    Header = function(header)
      if pandoc.utils.stringify(header) == "" then return {} end
      return header:walk({ LineBreak = function() return pandoc.Space() end })
    end,
    Link = function(link) -- one within the text, such as of a table of contents, has no place to lead to
      if link.target == "" or link.target:sub(1, 1) == "#" then return link.content end
    end,
    Note = function(note) if pandoc.utils.stringify(note.content) == "" then return {} end end,
    Underline = function(element) return pandoc.Emph(element.content) end, -- the typewriter's italics
    SmallCaps = contents,
    Strikeout = contents,
    Superscript = raised,
    Subscript = contents,
    Span = contents,
    Div = contents,
  },
  { Pandoc = with_title },
}
